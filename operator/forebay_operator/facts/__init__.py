"""What a model is, read from its metadata alone: never from its weights, never with torch."""

from forebay_operator.facts.errors import FactsError
from forebay_operator.facts.model_facts import Checkpoint, KVLayers, ModelFacts, TensorGroup

__all__ = ["Checkpoint", "FactsError", "KVLayers", "ModelFacts", "TensorGroup"]
