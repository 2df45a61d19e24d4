"""The configuration file fgsched.toml, and the changes that operators make to partitions at run time."""
