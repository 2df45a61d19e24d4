"""The configuration file fgsched.toml, and the changes that operators make to partitions at run time.

contradictions  settings that contradict each other
forms           forms of the values: sizes, times, shares of GPUs and lists of GPUs
hostsize        compare a configuration with the CPUs, the host memory and the GPUs of the host
keys            the keys of the settings: documentation, and changes that operators make at run time
load            read the settings from fgsched.toml
schema          the settings: type, unit, range, default and meaning of every key
"""
