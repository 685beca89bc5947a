"""The one place that knows the memory of torch tensors and numpy arrays.

The rest of aiodist sees bytes (`Buffer.view`), element types (`DType`) and reductions over bytes
(`Reduction`). Importing this package imports numpy and not torch; the first tensor does that.
"""

from aiodist.tensors.buffer import Buffer, Kind, buffer_of, empty_like_message, is_tensor, scratch
from aiodist.tensors.codec import TensorExtension
from aiodist.tensors.dtypes import DTYPES, DType, dtype_named, dtype_of_code
from aiodist.tensors.meta import decode_meta, encode_meta
from aiodist.tensors.reduction import Reduction, reduction
from aiodist.tensors.tensor_signature import TensorSignature

__all__ = [
    "DTYPES",
    "Buffer",
    "DType",
    "Kind",
    "Reduction",
    "TensorExtension",
    "TensorSignature",
    "buffer_of",
    "decode_meta",
    "dtype_named",
    "dtype_of_code",
    "empty_like_message",
    "encode_meta",
    "is_tensor",
    "reduction",
    "scratch",
]
