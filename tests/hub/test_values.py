"""The Kubernetes values: against the chart's schema, as far as it goes without a cluster; one truth with student/."""

import json
import re

import pytest
import yaml
from lab_server import ROOT

from course.classroom import PROFILES, plan_classroom

HUB = ROOT / "course/hub"
VALUES = yaml.safe_load((HUB / "values.yaml").read_text())

OBJECT, LIST, TEXT, WHOLE, NUMBER, TRUTH = dict, list, str, int, (int, float), bool
SCHEMA = {
    "hub.config": OBJECT,
    "singleuser.image.name": TEXT,
    "singleuser.image.tag": TEXT,
    "singleuser.cmd": (list, str, type(None)),
    "singleuser.defaultUrl": TEXT,
    "singleuser.startTimeout": WHOLE,
    "singleuser.memory.limit": (int, float, str),
    "singleuser.memory.guarantee": (int, float, str),
    "singleuser.cpu.limit": NUMBER,
    "singleuser.cpu.guarantee": NUMBER,
    "singleuser.extraEnv": OBJECT,
    "singleuser.storage.capacity": TEXT,
    "singleuser.storage.extraVolumes": LIST,
    "singleuser.storage.extraVolumeMounts": LIST,
    "singleuser.lifecycleHooks.postStart": OBJECT,
    "singleuser.extraFiles": OBJECT,
    "singleuser.profileList": LIST,
    "cull.enabled": TRUTH,
    "cull.timeout": WHOLE,
    "cull.every": WHOLE,
    "prePuller.continuous.enabled": TRUTH,
}
"""Keys and types of jupyterhub/zero-to-jupyterhub-k8s, jupyterhub/values.schema.yaml at 02dd73d (Helm refuses others).

Below a key whose type is an object the chart takes anything, except in ``extraFiles``.
"""


def flat(values: dict, path: str = "") -> dict:
    """Dotted path → value, down to the paths of SCHEMA."""
    found = {}
    for key, value in values.items():
        here = f"{path}.{key}".strip(".")
        deeper = isinstance(value, dict) and here not in SCHEMA
        found |= flat(value, here) if deeper else {here: value}
    return found


def refusals(values: dict) -> list[str]:
    """Paths that the chart does not know, or whose value is of another type."""
    return [
        path for path, value in flat(values).items() if not isinstance(value, SCHEMA.get(path, ()))
    ]


def test_the_chart_knows_every_key():
    assert refusals(VALUES) == []
    assert set(flat(VALUES)) == set(SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"singelusers": {}, "singleuser": {"memmory": {"limit": "3G"}}},
        {"cull": {"timeout": "7200"}},
        {"culling": 1},
    ],
)
def test_another_key_or_type_is_seen(wrong):
    assert refusals(wrong)


def test_a_file_for_the_servers_has_a_place_and_one_content():
    """The schema's inner keys: a path, and one of three contents; ``data`` is written as the path's ending says."""
    for entry in VALUES["singleuser"]["extraFiles"].values():
        assert {key: type(value) for key, value in entry.items()} == {
            "mountPath": str,
            "data": dict,
        }
        assert re.fullmatch(r"/etc/jupyter/.+\.json", entry["mountPath"])


def test_what_a_student_s_server_is_told_is_the_same_on_both_hubs():
    for entry in VALUES["singleuser"]["extraFiles"].values():
        ours = HUB / "student" / entry["mountPath"].removeprefix("/etc/jupyter/")
        assert entry["data"] == json.loads(ours.read_text()), ours.name
    assert len(VALUES["singleuser"]["extraFiles"]) == len(list((HUB / "student").rglob("*.json")))
    config = (HUB / "jupyterhub_config.py").read_text()
    assert f'default_url = "{VALUES["singleuser"]["defaultUrl"]}"' in config
    assert f"--timeout={VALUES['cull']['timeout']}" in config
    assert f'"MEMKIT_HUB_MEMORY", "{VALUES["singleuser"]["memory"]["limit"]}"' in config


def test_the_profiles_are_what_the_classroom_command_says():
    ways = {way.name: way for way in plan_classroom("A100 SXM 80 GB", 20).ways}
    without, mig, mps, fraction = (
        p.get("kubespawner_override") for p in VALUES["singleuser"]["profileList"]
    )
    assert without is None
    [resource] = mig["extra_resource_limits"]
    assert resource.removeprefix("nvidia.com/mig-") in PROFILES["A100 SXM 80 GB"].split()
    assert f"Kubernetes: {resource}: 1" in ways["MIG"].settings
    assert mps["extra_resource_limits"] == {"nvidia.com/gpu": "1"}
    assert any("replicas: 10 " in line for line in ways["MPS"].settings)
    cap = f"MEMKIT_GPU_GIB={fraction['environment']['MEMKIT_GPU_GIB']} make hub"
    assert any(line.endswith(f" {cap}") for line in ways["fraction"].settings)


def test_the_readme_s_versions_are_those_of_the_files():
    readme, pins = (HUB / "README.md").read_text(), (ROOT / "dev" / "constraints.txt").read_text()
    for name, version in re.findall(r"\b([a-z]+)==([\d.]+)", readme):
        assert f"\n{name}=={version}\n" in pins
    assert VALUES["singleuser"]["image"]["tag"] in readme
