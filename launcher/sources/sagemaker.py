"""A SageMaker training job: one container per node.

SageMaker writes the hosts into a file in every container; its training toolkit turns that file into
variables. SM_HOSTS is sorted as text (``algo-10`` before ``algo-2``). We order the nodes by the numbers in
their names, which gives the same order on every node. The toolkit's mpirun passes SM_* of its own node to all
ranks.

Source: docs.aws.amazon.com "How Amazon SageMaker AI Provides Training Information";
aws/sagemaker-training-toolkit src/sagemaker_training/params.py and environment.py.
"""

from __future__ import annotations

import re

from launcher.core.environ import Malformed, each_once, parse_json
from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader
from launcher.sources.signs import FIXES

HOSTS, CURRENT_HOST, *OBJECTS, JOB = MARKERS["sagemaker"]
"""The objects have the same two again, as JSON."""
FILE = "/opt/ml/input/config/resourceconfig.json"
"""File with the first of these objects. Without the toolkit there is nothing else; it is read only if `JOB`
is set."""
GPUS = "SM_NUM_GPUS"
HETERO = "SM_IS_HETERO"  # several groups of instances, of which some may have no ranks
GROUPS = "SM_DISTRIBUTION_INSTANCE_GROUPS"
GROUP, GROUP_HOSTS = "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_GROUP_HOSTS"
_NUMBER = re.compile(r"\d+", re.ASCII)


def read(reader: Reader) -> None:
    """Claim the host list, this node's position in it, and the GPUs."""
    hosts = reader.parsed(HOSTS, _parse_hosts) or ()
    current, origin = reader.text(CURRENT_HOST) or "", HOSTS
    if not reader.has(HOSTS):
        hosts, current, origin = _read_objects(reader, current)
    if not origin:
        return  # a job's name alone: not a container of SageMaker
    reader.starts = Scope.NODE
    if reader.text(HETERO) == "true":
        groups = _read_groups(reader)
        if current not in groups:
            reader.sign(HETERO, FIXES["instance-groups"])
            return
        hosts, origin = groups, GROUPS
    reader.claim_hosts(hosts, origin, master=Trust.DERIVED)
    if reader.is_started():
        return  # the other two facts are those of mpirun's own node
    name = CURRENT_HOST if reader.has(CURRENT_HOST) else "current_host"
    if current in hosts:
        reader.claim(Fact.NODE_RANK, hosts.index(current), f"{name} in {origin}")
    elif hosts and current:
        reader.malformed(name if name == CURRENT_HOST else origin, f"{name} to be one of its hosts")
    elif not hosts and not reader.has(HOSTS):
        reader.sign(origin, f"pass {HOSTS} to the launcher too, or pass --nnodes N --node-rank R")
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, trust=Trust.DERIVED)


def _read_groups(reader: Reader) -> tuple[str, ...]:
    """Return the hosts of the groups that train together; empty if they are not known."""
    try:
        wanted = parse_json(reader.text(GROUPS) or "[]")
        config = parse_json(reader.text(OBJECTS[0]) or reader.host.read_text(FILE) or "{}")
        groups = config.get("instance_groups", ())
        known = {group["instance_group_name"]: group["hosts"] for group in groups}
        known.setdefault(reader.text(GROUP), parse_json(reader.text(GROUP_HOSTS) or "[]"))
        return _sort_hosts([host for name in wanted for host in known[name]])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _read_objects(reader: Reader, current: str) -> tuple[tuple[str, ...], str, str]:
    """Return hosts, this node's host and their origin from the first JSON object that has hosts."""
    texts = [(name, reader.text(name)) for name in OBJECTS]
    texts += [(FILE, reader.host.read_text(FILE))] if reader.has(JOB) else []
    origin = CURRENT_HOST if current else next((name for name, text in texts if text), "")
    for name, text in texts:
        try:
            said = parse_json(text or "")
            own = said.get("current_host")
            return _sort_hosts(said["hosts"]), current or (own if isinstance(own, str) else ""), name
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return (), current, origin


def _parse_hosts(text: str) -> tuple[str, ...]:
    try:
        items = parse_json(text)
    except ValueError:
        items = None
    return _sort_hosts(items)


def _sort_hosts(items: object) -> tuple[str, ...]:
    """Return hosts in the order of the numbers in their names.

    Raises:
        Malformed: They are not a list of host names, or one occurs twice.
    """
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise Malformed("a JSON list of hostnames")
    numbers = {host: [int(number) for number in _NUMBER.findall(host)] for host in each_once(items)}
    return tuple(sorted(numbers, key=lambda host: (_NUMBER.sub("#", host), numbers[host], host)))
