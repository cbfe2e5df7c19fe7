"""Experiments that reproduce results, one file each: a frozen ``Config`` and ``run(config)``."""
