"""The configuration file fgsched.toml, and the changes that operators make to partitions at run time.

contradictions  find settings that contradict each other or the host
forms           forms of the values: sizes, times, shares of GPUs and lists of GPUs
keys            the keys of the settings: documentation, and changes that operators make at run time
load            read the settings from fgsched.toml
schema          the settings: type, unit, range, default and meaning of every key
"""
