"""Experiments: composed with Hydra from YAML files, each pinning a frozen plan."""

from harness.experiment.compose import ExperimentConfig, compose_experiment, expand_sweep
from harness.experiment.fields import GOVERNED

__all__ = ["GOVERNED", "ExperimentConfig", "compose_experiment", "expand_sweep"]
