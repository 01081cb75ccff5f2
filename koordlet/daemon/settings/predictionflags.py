"""The flags of prediction: Koordinator's names and defaults."""

from koord.component.flagchecks import absolute, at_least, lasting
from koord.component.flags import FlagSet

HOUR = 3600.0


class PredictionFlags:
    """The flags as attributes. Durations are in seconds."""

    def __init__(self, flags: FlagSet) -> None:
        self.checkpoints = flags.string(
            "prediction-checkpoint-filepath",
            "/prediction-checkpoints",
            "directory of what was learnt; unless given <run-dir>/prediction-checkpoints, which is "
            "where Koordinator's agent has it on the host",
            check=absolute,
        )
        self.cold_start = flags.duration(
            "prediction-cold-start-duration",
            24 * HOUR,
            "age of a pod, and of what was learnt of it, from which it is predicted; until then "
            "its whole request counts",
            check=lasting(0.0),
        )
        self.safety_margin = flags.int(
            "prediction-safety-margin-percent",
            10,
            "added to the predicted peaks",
            check=at_least(0),
        )
        self.cpu_half_life = flags.duration(
            "prediction-cpu-histogram-decay-halflife",
            12 * HOUR,
            "time after which a sample of CPU counts half",
            check=lasting(60.0),
        )
        self.memory_half_life = flags.duration(
            "prediction-memory-histogram-decay-halflife",
            24 * HOUR,
            "time after which a sample of memory counts half",
            check=lasting(60.0),
        )
        self.training_interval = flags.duration(
            "prediction-training-interval",
            60.0,
            "period of samples; each is the 90th percentile of this time",
            check=lasting(5.0),
        )
        self.expiration = flags.duration(
            "prediction-model-expiration-duration",
            1800.0,
            "time without a sample after which a model is forgotten",
            check=lasting(60.0),
        )
        self.checkpoint_interval = flags.duration(
            "prediction-model-checkpoint-interval",
            600.0,
            "period in which each model is saved",
            check=lasting(60.0),
        )
        self.checkpoints_per_step = flags.int(
            "prediction-model-checkpoint-max-per-step",
            12,
            "models saved a minute; more if the period needs it",
            check=at_least(1),
        )

    def follow_run_dir(self, run_dir: str) -> None:
        """Set the default of the directory, once the run directory is known."""
        self.checkpoints.default = f"{run_dir}/prediction-checkpoints"
