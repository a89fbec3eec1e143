"""Who guesses. A drafter hands over tokens and the very distributions that they were drawn from."""

from speclib.drafters.fallback import FallbackDrafter
from speclib.drafters.lookup import LookupDrafter, lookup_draft
from speclib.drafters.model import ModelDrafter
from speclib.drafters.ngram import NgramDrafter
from speclib.drafters.protocol import Drafter, Proposal

__all__ = ["Drafter", "FallbackDrafter", "LookupDrafter", "ModelDrafter", "NgramDrafter", "Proposal", "lookup_draft"]
