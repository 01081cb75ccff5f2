"""Prediction: the peaks of pods and node, learnt for the reports."""

from functools import partial
from pathlib import Path

from koord.util.clock import Clock
from koord.util.owneddir import OwnedDirectory
from koordlet.daemon.settings.settings import Settings
from koordlet.metriccache.cache import MetricCache
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import HalfLives
from koordlet.prediction.prediction import PeakPrediction, PredictionOptions
from koordlet.statesinformer.informer import StatesInformer


def build_prediction(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
) -> PeakPrediction:
    """Make the prediction; its directory is opened when it runs."""
    flags = settings.options.prediction
    return PeakPrediction(
        PredictionOptions(
            node=settings.node_name,
            half_lives=HalfLives(flags.cpu_half_life.value, flags.memory_half_life.value),
            cold_start=flags.cold_start.value,
            safety_margin=flags.safety_margin.value,
            training_interval=flags.training_interval.value,
            expiration=flags.expiration.value,
            checkpoint_interval=flags.checkpoint_interval.value,
            checkpoints_per_step=flags.checkpoints_per_step.value,
        ),
        cache=cache,
        states=states,
        files=CheckpointFiles(partial(OwnedDirectory.open, Path(flags.checkpoints.value))),
        clock=clock,
    )
