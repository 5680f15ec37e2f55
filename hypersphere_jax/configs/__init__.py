# ruff: noqa: F401  (names for import from here)
"""Configs: frozen dataclasses whose fields are the options of the commands.

The fields of `RuntimeConfig` and `EvaluateConfig` and `remat` do not change the numbers of a run. A
run resumes only with the same values of all others.
"""

from hypersphere_jax.configs.base import (
    Config,
    Custom,
    Diverged,
    Stopped,
    UserError,
    from_dict,
    require,
    section,
    to_dict,
)
from hypersphere_jax.configs.data import DataConfig, InspectConfig, PrepareConfig
from hypersphere_jax.configs.evaluation import (
    EvaluateConfig,
    FeaturesConfig,
    MetricsConfig,
    ProbeConfig,
    ReportConfig,
)
from hypersphere_jax.configs.finetune import FinetuneConfig, FinetuneOptions
from hypersphere_jax.configs.model import ModelConfig
from hypersphere_jax.configs.objective import MocoConfig, ObjectiveConfig
from hypersphere_jax.configs.optimizer import OptimizerConfig
from hypersphere_jax.configs.pretrain import PretrainConfig, RunConfig
from hypersphere_jax.configs.pretrained import ExportConfig, ImportConfig, WeightsOptions
from hypersphere_jax.configs.runtime import RuntimeConfig
