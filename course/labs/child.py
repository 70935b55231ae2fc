"""The process in which a student's cells run; it is told cells and arguments, and answers with values.

Nothing here knows a right answer, and the sandbox that it runs in holds no judge: a student's code that looks around
finds its own cells.
"""

import builtins
import json
import os
import resource
import sys

from passing import from_line, to_line


def run_cells(cells: list, names: dict) -> dict:
    """All cells in order; what fails in one leaves the next ones alone. Where a test stood, its name is read.

    A cell is its source, or a list of one name: what that name stands for there is the answer, and beside it stands
    what the cells since the last test raised.
    """
    found, raised = {}, None
    for number, source in enumerate(cells, 1):  # as the page counts them
        if isinstance(source, list):
            found[source[0]], raised = (names.get(source[0], ...), raised), None
            continue
        lines = ["" if line.startswith(("%", "!")) else line for line in source.split("\n")]
        try:
            exec(compile("\n".join(lines), f"cell {number}", "exec"), names)  # noqa: S102
        except BaseException as error:  # noqa: BLE001 - whatever a student's cell raises
            raised = error.with_traceback(None)
    return found


def answer_to(request: dict, found: dict) -> str:
    """One line for one request: the value of a name, or what a call returns and leaves in its arguments."""
    value, raised = found.get(request["name"], (..., None))
    if value is ... and raised is not None:
        return in_words(raised)
    if "arguments" not in request:
        return to_line({"value": value})
    arguments = from_line(request["arguments"])
    try:
        result = value(*arguments)
    except BaseException as error:  # noqa: BLE001
        return in_words(error)
    return to_line({"value": result, "arguments": list(arguments)})


def in_words(error: BaseException) -> str:
    return to_line({"raised": type(error).__name__, "words": str(error)[:500]})


def serve() -> None:
    """The first line has the cells; every further one is a question."""
    questions, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    seconds, memory = map(int, sys.argv[1:])
    # first SIGXCPU, by which the end is known
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    builtins.display = lambda *shown, **choices: None
    names = {"__name__": "__main__"}
    found = run_cells(json.loads(questions.readline()), names)
    replies.write("ready\n")
    replies.flush()
    for question in questions:
        try:
            reply = answer_to(json.loads(question), found)
        except BaseException as error:  # noqa: BLE001 - a value of a student's class, or a call of sys.exit
            reply = to_line({"raised": type(error).__name__, "words": "while its value was read"})
        replies.write(reply + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
