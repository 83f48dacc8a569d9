"""A pod of a Kubernetes Indexed Job, also in a JobSet: it knows its index but not the number of pods.

So the user must give the number of nodes. In a JobSet with several Jobs, each Job has a pod of every index. A
pod of the second or a later Job is recognized by its name, ``<jobset>-<job>-<number of the Job>-<index>``.

Source: kubernetes.io "Indexed Job for Parallel Processing with Static Work Assignment", "Job with
Pod-to-Pod Communication"; kubernetes pkg/kubelet/kubelet_pods.go (/etc/hosts); kubernetes-sigs/jobset
pkg/util/placement.
"""

from __future__ import annotations

from launcher.core.environ import is_host
from launcher.core.model import Fact, Scope, Trust
from launcher.sources.reader import Reader
from launcher.sources.signs import FIXES

INDEX = "JOB_COMPLETION_INDEX"
OF_POD = ("PET_NNODES", "PROCESS_ID", "JAX_PROCESS_ID", "TF_CONFIG")
"""Variables in which an operator says more of the pods: beside them, index 0 may be the only one."""
RANKS = ("RANK", "NODE_RANK", "PET_NODE_RANK")
"""Variables in which a template may give a pod its rank; in the later Jobs of a JobSet it is above the
index."""
HOSTS_FILE = "/etc/hosts"
"""The kubelet writes the pod's full name into this file, if it has one: address, full name, name."""


def read(reader: Reader) -> None:
    """Claim the index as the node rank, and pod 0 as the master if its name is known.

    A sign asks the user for the number of nodes. If it is given, a pod of a later Job of a JobSet claims
    nothing.
    """
    index = reader.integer(INDEX)
    reader.sign(INDEX, FIXES["indexed-job"], of_nodes=index != 0 or not reader.has(*OF_POD))
    if index is None or reader.node_count == 1:
        return
    reader.set_least(index, INDEX)  # the ranks of a JobSet continue from Job to Job
    ranks = {name: rank for name in RANKS if (rank := reader.integer(name)) is not None}
    for told in [name for name, rank in ranks.items() if rank < index][:1]:
        reader.refuse("other-index", told, index=reader.origin(INDEX))
    stem, _, number = reader.own_name().rpartition("-")
    of_job = stem.rpartition("-")[2] if number == str(index) else ""
    # Variables for a whole job may be those of several parts that each have an index 0
    if reader.has(*OF_POD) or reader.is_started() or (of_job.isdecimal() and ranks):
        return
    if reader.node_count is not None and of_job.isdecimal() and of_job.strip("0"):
        pod = reader.host.hostname()
        reader.note(f"{pod} may be of a later Job of a JobSet: {INDEX} is not the node's then")
        return
    reader.starts = Scope.NODE
    reader.claim(Fact.NODE_RANK, index, INDEX)
    own, text = f"{stem}-{index}", reader.host.read_text(HOSTS_FILE) or ""
    names = [words[1] for words in map(str.split, text.splitlines()) if len(words) == 3 and words[2] == own]
    pods = [name for name in names if number == str(index) and name.startswith(f"{own}.")]
    for address in [*filter(is_host, (f"{stem}-0{name.removeprefix(own)}" for name in pods))][:1]:
        reader.claim(Fact.MASTER_ADDR, address, f"{own} in {HOSTS_FILE}, index 0", Trust.DERIVED)
