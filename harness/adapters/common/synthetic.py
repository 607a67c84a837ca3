"""What a made-up checkpoint of a family holds: keys, shapes and stored types. Knows no family.

Imports no torch; makes no numbers.
"""

from collections.abc import Sequence

from harness.adapters.common.rows import FLOAT_DTYPES, ResidentTensor, source_shapes
from harness.errors import InvalidInputError
from harness.plan.layout import SyntheticTensor
from harness.plan.records import ModelRange


def layers_to_make(num_layers: int, layers: tuple[int, int] | None) -> ModelRange:
    """The range of a model that is made up: all of it, or layers with the ends beside them.

    Raises:
        InvalidInputError: When the layers are not within the model.
    """
    start, end = (0, num_layers) if layers is None else layers
    if not 0 <= start < end <= num_layers:
        raise InvalidInputError(
            "the layers to make are not within the model",
            expected=f"0 <= start < end <= {num_layers}",
            got=f"[{start}, {end}]",
            where="source.layers",
        )
    return ModelRange(
        start_layer=start,
        end_layer=end,
        owns_embeddings=start == 0,
        owns_final_norm_head=end == num_layers,
        model_repository="",
        revision="",
    )


def stored_tensors(residents: Sequence[ResidentTensor]) -> dict[str, SyntheticTensor]:
    """The checkpoint tensors that resident ones are made of, by key, sorted."""
    dtypes = {source.key: source.dtypes for tensor in residents for source in tensor.sources}
    return {
        key: SyntheticTensor(
            shape=shape, dtype=None if dtypes[key] == FLOAT_DTYPES else dtypes[key][0]
        )
        for key, shape in source_shapes(residents).items()
    }
