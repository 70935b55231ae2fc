"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .blocks import (
    BLOCK_FORMATS as BLOCK_FORMATS,
    SCALINGS as SCALINGS,
    BlockFormat as BlockFormat,
    Quantized as Quantized,
    block_amax as block_amax,
    factors_from as factors_from,
    quantize as quantize,
    relative_error as relative_error,
    scale_to as scale_to,
)
from .records import (
    FORMATS as FORMATS,
    FloatFormat as FloatFormat,
    TableFormat as TableFormat,
    dtype_bits as dtype_bits,
    get_format as get_format,
    tensor_bytes as tensor_bytes,
)
from .rounding import (
    ROUNDINGS as ROUNDINGS,
    all_values as all_values,
    decode as decode,
    encode as encode,
    round_to as round_to,
    running_sum as running_sum,
    sticking_point as sticking_point,
    torch_overflow as torch_overflow,
)
from .single import (
    CodeReading as CodeReading,
    Nearest as Nearest,
    code_fields as code_fields,
    decode_one as decode_one,
    encode_one as encode_one,
    nearest_in as nearest_in,
    number_text as number_text,
    parse_number as parse_number,
    read_code as read_code,
)
