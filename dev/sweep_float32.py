"""Encode all 2^32 float32 bit patterns into every format of up to 16 bits and count where libraries differ.

    nice python dev/sweep_float32.py

About 12 minutes on one free core. The tests check 10^8 of these inputs each time; this ran once, and its counts
are kept.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess

import ml_dtypes
import numpy as np
import torch

from book.recordings import FOLDER
from memkit.formats.records import FORMATS, FloatFormat
from memkit.formats.rounding import encode

STEP = 1 << 20
CODE = [f"memkit/formats/{module}.py" for module in ("records", "single", "rounding")]
COMMIT_OF_THE_CODE = ["git", "log", "-1", "--format=%H", "--", *CODE]


def library_codes(x: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """The codes that ml_dtypes and torch give, each where it has the dtype."""
    storage, integer = (
        (np.uint16, torch.int16) if FORMATS[name].bits == 16 else (np.uint8, torch.uint8)
    )
    codes = {}
    if hasattr(ml_dtypes, name):
        with np.errstate(all="ignore"):
            codes["ml_dtypes"] = x.astype(getattr(ml_dtypes, name)).view(storage)
    if hasattr(torch, name):
        codes["torch"] = (
            torch.from_numpy(x).to(getattr(torch, name)).view(integer).numpy().view(storage)
        )
    return codes


def overflow_of(library: str, name: str) -> str:
    fmt = FORMATS[name]
    if library == "torch":
        beyond = torch.tensor(torch.inf).to(getattr(torch, name)).double()
        return "inf" if beyond.isinf() else "nan" if beyond.isnan() else "saturate"
    return "inf" if fmt.has_infinity else "nan" if fmt.num_nans else "saturate"


def sweep(name: str) -> dict[str, dict]:
    """For each library: inputs compared, codes that differ, and how many of those are NaN, zero or
    negative."""
    counts: dict[str, dict] = {}
    for start in range(0, 1 << 32, STEP):
        x = np.arange(start, start + STEP, dtype=np.uint64).astype(np.uint32).view(np.float32)
        if not FORMATS[name].num_nans:
            x = x[~np.isnan(x)]  # memkit refuses NaN where the format has no code for it
        ours = {}
        for library, theirs in library_codes(x, name).items():
            overflow = overflow_of(library, name)
            if overflow not in ours:
                ours[overflow] = encode(x, name, overflow=overflow)
            differs = theirs != ours[overflow]
            count = counts.setdefault(
                library,
                {
                    "overflow": overflow,
                    "inputs": 0,
                    "differ": 0,
                    "differ_nan": 0,
                    "differ_zero_or_negative": 0,
                },
            )
            count["inputs"] += x.size
            if differs.any():
                where = x[differs]
                count["differ"] += where.size
                count["differ_nan"] += int(np.isnan(where).sum())
                count["differ_zero_or_negative"] += int((where <= 0).sum())
    for count in counts.values():
        count["differ_otherwise"] = (
            count["differ"] - count["differ_nan"] - count["differ_zero_or_negative"]
        )
    return counts


def cpu_name() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor()
    )


def recording_of(formats: dict[str, dict], commit: str) -> dict[str, dict]:
    """The counts of every format and library, and where they come from."""
    numbers = {
        f"{name} and {library}: {what.replace('_', ' ')}": value
        for name, libraries in formats.items()
        for library, count in libraries.items()
        for what, value in count.items()
    }
    provenance = {
        "processor": cpu_name(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "command": "python dev/sweep_float32.py",
        "commit": commit,
        "ml_dtypes": ml_dtypes.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return {"about": provenance, "runs": numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER / "formats_sweep_cpu.json")
    parser.add_argument(
        "--only", nargs="*", help="formats to sweep; all of up to 16 bits by default"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.only or [
        n for n, f in FORMATS.items() if isinstance(f, FloatFormat) and f.bits <= 16
    ]
    commit = subprocess.run(
        COMMIT_OF_THE_CODE, capture_output=True, text=True, check=True
    ).stdout.strip()
    formats = {}
    for name in names:
        formats[name] = sweep(name)
        print(name, formats[name], flush=True)
    text = json.dumps(recording_of(formats, commit), indent=1)
    arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
