"""RMSNorm in single operations: written in Python, or as torch's composite where there is no kernel, on the CPU."""

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.model import Transformer
from memkit.formula.operations import NEW, Summed, Tensor, scope


class WithNormInSteps(Transformer):
    """A transformer whose RMSNorm is many operations."""

    @scope
    def normalised(self, x: Tensor, weights: list[Tensor], label: str) -> Tensor:
        """x / √(mean x² + ε), times a weight for each column; torch's composite casts back after it, ours before."""
        (weight,) = weights
        graph, is_composite = self.graph, self.setup.uses_fused_norm
        normalised, wide, inverse = self.divide_by_rms(x, weight.count, label)
        factor = normalised if is_composite else graph.cast(normalised, x.dtype, f"{label} normalised")
        factors, wider = [weight, factor], weight.dtype if weight.dtype == "float32" else factor.dtype
        out = graph.op(
            "mul", factors, x.axes, wider, name=f"{label} output", by="mul by the weight", keeps=factors,
            ways=(self.summed_rows(x.count // weight.count, weight.count, is_product=True), NEW),
        )
        self.copy_for_loop(sum(tensor_bytes(each.count, wider) for each in factors if each.dtype != wider))
        graph.hold(normalised, factor)
        if is_composite:  # C++ holds both factors longer; Python binds the name of x anew
            graph.hold(wide)
            graph.bind(inverse)
            out = graph.cast(out, x.dtype, f"{label} output")
        return out

    def divide_by_rms(self, x: Tensor, width: int, label: str) -> tuple[Tensor, Tensor, Tensor]:
        """x / √(mean x² + ε) in float32, one tensor a step; and its two factors, x and 1 / √."""
        graph, rows = self.graph, f"{x.axes.rpartition(' ')[0]} 1"
        along = self.along_rows(x.count // width, width)
        wide = graph.cast(x, "float32")
        # The backward of a power computes exponent · x^(exponent - 1) in two temporaries.
        scratch_bytes = 2 * self.rounded(wide.num_bytes)
        square = graph.op("pow", [wide], x.axes, keeps=[wide], scratch_bytes=scratch_bytes)
        mean = graph.op("mean", [square], rows)
        if along:
            graph.scratch(along)
            graph.hold(square)
        inverse = graph.op("rsqrt", [mean], rows, name=f"{label} 1/rms", out_by="rsqrt")
        factors, ways = [wide, inverse], (NEW, Summed(along, is_product=True))
        out = graph.op("mul", factors, x.axes, name=f"{label} normalised", keeps=factors, ways=ways)
        return out, wide, inverse
