"""From a configuration file and arguments to variables; see horovod.runner.config_file."""

from __future__ import annotations

from horovod.runner.config_file import read_config, set_args_from_config
from horovod.runner.knob_options import set_env_from_args, validate_config_args

__all__ = ["read_config", "set_args_from_config", "set_env_from_args", "validate_config_args"]
