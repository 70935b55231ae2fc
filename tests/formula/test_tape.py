"""What the tape frees and keeps, and when: the rules of autograd, each in a program of a few lines."""

import pytest

from memkit.formula.backward import Backward
from memkit.formula.tape import FULL, SAME, SUM, Tape, Value

KB = 256  # float32 values


def live(tape):
    """Live bytes after each event."""
    total, seen = 0, []
    for storage, sign in tape.events:
        total += sign * storage.num_bytes
        seen.append(total)
    return seen


def new_tape(**more):
    return Tape(lambda num_bytes: num_bytes, **more)


def start(tape):
    """A parameter of 1 KiB, and 1 KiB computed from it."""
    weight = Value(KB, "float32")
    return weight, tape.run("make", [weight], KB, "float32")


def finish(tape, y, accumulates=False):
    """Reduce y to a loss, read the tape backwards; returns the live bytes from the loss on."""
    loss = tape.run("loss", [y], 1, "float32")
    tape.drop(y)
    position = len(tape.events)
    backward = Backward(tape, loss, accumulates)
    backward.read(tape.operations)
    backward.end()
    tape.drop(loss)
    return live(tape)[position:]


def test_what_no_operation_keeps_is_freed_when_the_program_drops_it():
    tape = new_tape()
    _, x = start(tape)
    y = tape.run("double", [x], KB, "float32")
    tape.drop(x)
    assert live(tape) == [1024, 2048, 1024]
    tape.drop(y)
    assert live(tape)[-1] == 0


def test_what_an_operation_keeps_stays_until_its_backward():
    tape = new_tape()
    _, x = start(tape)
    y = tape.run("square", [x], KB, "float32", keeps=[x])
    tape.drop(x)
    assert live(tape)[-1] == 2048
    assert finish(tape, y)[-1] == 1024  # the gradient of the weight


def test_dropping_twice_is_dropping_once():
    tape = new_tape()
    _, x = start(tape)
    tape.drop(x, x)
    tape.drop(x)
    assert live(tape) == [1024, 0]


def test_a_view_costs_nothing_and_holds_the_whole():
    tape = new_tape()
    _, x = start(tape)
    left, right = tape.split("chunk", x, [KB // 2] * 2)
    tape.drop(x, left)
    assert live(tape) == [1024]
    tape.drop(right)
    assert live(tape) == [1024, 0]


def test_a_gradient_overlaps_with_what_it_is_made_from():
    """At the square: gradient of y, x and gradient of x, three tensors."""
    tape = new_tape()
    _, x = start(tape)
    y = tape.run("square", [x], KB, "float32", keeps=[x])
    tape.drop(x)
    z = tape.run("double", [y], KB, "float32")
    tape.drop(y)
    small = 4 + 4  # the loss and the first gradient
    assert max(finish(tape, z)) == 3 * 1024 + small


def test_an_addition_makes_no_gradient():
    tape = new_tape()
    _, x = start(tape)
    y = tape.run("add", [x, x], KB, "float32", modes=(SAME, SAME))
    tape.drop(x)
    births = len([sign for _, sign in tape.events if sign > 0])
    finish(tape, y)
    new = [storage.num_bytes for storage, sign in tape.events if sign > 0][births:]
    # loss and one; the gradient of y, which is that of x twice; their sum; the weight's
    assert new == [4, 4, 1024, 1024, 1024]


@pytest.mark.parametrize("is_viewed, num_tensors", [(False, 2), (True, 3)])
def test_a_second_gradient_is_added_in_place_unless_the_first_is_a_view(is_viewed, num_tensors):
    tape = new_tape()
    _, x = start(tape)
    one = tape.run("first", [x], KB, "float32")
    two = tape.run("second", [x], KB, "float32", sends_views=is_viewed)
    tape.drop(x)
    y = tape.run("add", [one, two], KB, "float32", modes=(SAME, SAME))
    tape.drop(one, two)
    births = len([sign for _, sign in tape.events if sign > 0])
    finish(tape, y)
    new = [storage.num_bytes for storage, sign in tape.events if sign > 0][births:]
    assert new.count(1024) == 1 + num_tensors + 1  # between the gradients of y and of the weight


def test_a_broadcast_factor_gets_a_large_gradient_first():
    tape, factor = new_tape(), Value(1, "float32")
    _, x = start(tape)
    y = tape.run("mul", [x, factor], KB, "float32", keeps=[x, factor], modes=("new", FULL))
    tape.drop(x)
    bias = Value(1, "float32")
    z = tape.run("add bias", [y, bias], KB, "float32", modes=(SAME, SUM))
    tape.drop(y)
    # x, the gradients of y and of x, the factor's before it is summed; loss, one, two sums
    assert max(finish(tape, z)) == 4 * 1024 + 4 * 4


def test_a_later_micro_batch_adds_to_the_gradient_that_is_there():
    for accumulates, left in ((False, 1024), (True, 0)):
        tape = new_tape()
        _, x = start(tape)
        assert finish(tape, x, accumulates)[-1] == left


def test_gradients_are_kept_in_the_dtypes_asked_for():
    tape = new_tape()
    _, x = start(tape)
    loss = tape.run("sum", [x], 1, "float32", modes=(SAME,))
    tape.drop(x)
    backward = Backward(tape, loss, False, ("bfloat16", "float32"))
    backward.read(tape.operations)
    kept = {id(s): s for s, _ in tape.events if s.part == "gradients" and s.holders}
    assert sorted(storage.num_bytes for storage in kept.values()) == [512, 1024]


def region(tape):
    """Three operations; the third keeps its input and is the last to keep anything."""

    def run(x, *_):
        a = tape.run("a", [x], KB, "float32", keeps=[x])
        b = tape.run("b", [a], KB, "float32", keeps=[a])
        tape.drop(a)
        c = tape.run("c", [b], KB, "float32", keeps=[b])
        tape.drop(b)
        return c

    return run


def test_a_checkpoint_keeps_its_argument_alone():
    tape = new_tape(random_state_bytes=100)
    _, x = start(tape)
    y = tape.checkpoint(region(tape), x)
    tape.drop(x)
    assert live(tape)[-1] == 2 * 1024 + 100  # argument, result, the state of the random numbers
    assert finish(tape, y)[-1] == 1024


def test_a_recomputation_stops_at_the_last_tensor_that_is_kept():
    tape = new_tape()
    _, x = start(tape)
    y = tape.checkpoint(region(tape), x)
    tape.drop(x)
    position = len(tape.events)
    finish(tape, y)
    made_again = [s for s, sign in tape.events[position:] if sign > 0 and s.part == "activations"]
    assert [s.num_bytes for s in made_again] == [4, 4, 1024, 1024]  # loss and one; a and b, not c


def test_autocasts_cast_is_made_once_and_forgotten_unless_kept():
    tape, weight = new_tape(), Value(KB, "float32")
    first = tape.cast_weight(weight, "bfloat16")
    assert tape.cast_weight(weight, "bfloat16") is first and live(tape) == [512]
    assert tape.cast_weight(Value(KB, "bfloat16"), "bfloat16").storage is None
    kept = Value(KB, "float32")
    cast = tape.cast_weight(kept, "bfloat16")
    tape.run("product", [cast], 1, "bfloat16", keeps=[cast])
    tape.forget_casts([weight, kept])
    assert live(tape)[-1] == 512 + 2
