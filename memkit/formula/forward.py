"""The forward of ``memkit.program.transformer`` as operations on a tape, from the token ids to the loss.

The order of the calls is that of ``Transformer.forward``. ``memkit.formula.estimate`` calls them and repeats
a block's events for every layer.
"""

from memkit.formats.dtypes import dtype_bits
from memkit.formula.attention import AttentionSchedule
from memkit.formula.kernels import embedding_backward_buffers
from memkit.formula.parameters import block_parameters, embedding_parameters, output_parameters
from memkit.formula.tape import Tape, Value
from memkit.setup.training import TrainingSetup


class Schedule(AttentionSchedule):
    """One micro-batch: ``embed``, ``block`` any number of times, ``loss``, ``end_forward``."""

    def __init__(self, setup: TrainingSetup, tape: Tape):
        super().__init__(setup, tape)
        self.add_parameters(embedding_parameters(self.model) + output_parameters(self.model))
        self.names: list[Value] = []  # what the program holds until its forward returns

    def embed(self) -> Value:
        """Token ids to the first hidden state, and the tables that all blocks share."""
        tape, model, setup = self.tape, self.model, self.setup
        inputs, self.targets = tape.make(self.num_tokens, "int64"), tape.make(self.num_tokens, "int64")
        self.names += [inputs, self.targets]
        table = self.parameters["token_embedding.weight"]
        x = self.embedding(table, inputs)
        if model.position == "learned":
            positions = tape.make(setup.seq_len, "int64")
            self.names.append(positions)
            p = self.embedding(self.parameters["position_embedding.weight"], positions)
            token_embedding, x = x, self.add(x, p)
            tape.drop(token_embedding)
        x = self.dropout(x)
        self.tables = {"mask": tape.make(setup.seq_len**2, "bool")} if setup.attention == "stored" else {}
        if model.position == "rotary":
            self.tables |= self.rotary_tables()
        self.names += self.tables.values()
        return x

    def embedding(self, table: Value, indices: Value) -> Value:
        """A row of the table for every index."""
        count = indices.count * self.model.hidden_size
        num_rows, value_bytes = table.count // self.model.hidden_size, dtype_bits(self.weight_dtype) // 8
        stages = embedding_backward_buffers(indices.count, num_rows, self.model.hidden_size, value_bytes)
        scratch_bytes = self.highest(stages)
        return self.tape.run(
            "embedding", [table], count, self.weight_dtype, keeps=[indices], scratch_bytes=scratch_bytes
        )

    def rotary_tables(self) -> dict[str, Value]:
        """Cosines and sines of every angle, computed in float32."""
        tape, count = self.tape, self.setup.seq_len * self.model.head_dim
        half = tape.make(count // 2, "float32")
        angles = tape.make(count, "float32")
        tape.drop(half)
        tables = {}
        for name in ("cos", "sin"):
            wide = tape.make(count, "float32")
            tables[name] = wide if self.dtype == "float32" else tape.make(count, self.dtype)
            if tables[name] is not wide:
                tape.drop(wide)
        tape.drop(angles)
        return tables

    def block(self, x: Value) -> Value:
        """One transformer block with parameters of its own; drops x."""
        self.new_parameters = self.add_parameters(block_parameters(self.model))
        if self.setup.recomputation == "full":
            y = self.tape.checkpoint(self.two_branches, x, *self.tables.values())
        else:
            y = self.two_branches(x)
        self.tape.drop(x)
        return y

    def two_branches(self, x: Value, *_: Value) -> Value:
        """x + attention(norm(x)), then the same with the MLP."""
        tape = self.tape
        n = self.norm("norm_1", x)
        branch = self.attention(n)
        tape.drop(n)
        y = self.add(x, self.dropout(branch))
        n = self.norm("norm_2", y)
        branch = self.mlp(n)
        tape.drop(n)
        out = self.add(y, self.dropout(branch))
        tape.drop(y)
        return out

    def loss(self, x: Value) -> Value:
        """Final norm, head, mean cross-entropy, divided by the number of micro-batches; drops x."""
        tape, model = self.tape, self.model
        n = self.norm("norm", x)
        logits = self.linear(n, "token_embedding" if model.ties_embeddings else "head", model.vocab_size)
        tape.drop(n)
        if self.setup.upcasts_logits and logits.dtype != "float32":
            narrow, logits = logits, tape.cast(logits, "float32")
            tape.drop(narrow)
        wide = logits  # a CPU's autocast casts for the whole of cross_entropy, CUDA's for log_softmax alone
        if self.setup.precision.uses_autocast and not self.is_cuda:
            wide = tape.cast(logits, "float32")
        log_p = self.softmax("log_softmax", wide)
        keeps, extra = [log_p, self.targets], [(1, log_p.dtype)]
        loss = tape.run("nll_loss", [log_p], 1, log_p.dtype, keeps=keeps, extra=extra)
        if wide is not logits:
            tape.drop(wide)
        tape.drop(log_p, logits, x)
        mean = tape.run("1/micro-batches ·", [loss], 1, loss.dtype)
        tape.drop(loss)
        return mean

    def end_forward(self) -> None:
        """Autocast is left, and what the program named goes out of scope."""
        self.tape.forget_casts(self.parameters.values())
        self.tape.drop(*self.names)
