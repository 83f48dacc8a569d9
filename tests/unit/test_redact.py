"""What may leave a node: public names, values without secrets, text that is safe to print."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from launcher.core.redact import MARKER, printable, redact, redact_argv
from launcher.core.secrets import is_public_name
from tests.fuzz.secrets import KNOWN

# Made-up secrets, put together here so that scanners of this repository stay quiet.
HEX40 = "0123456789abcdef" * 2 + "01234567"
BASE64 = "aB3" * 28 + "+/=="
PASSWORD = "hunter2"
JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0In0", "dGhlIHNpZ25hdHVyZQ"])
AWS = "AKIA" + "ABCDEFGH12345678"
PEM = "-----BEGIN RSA PRIVATE" + " KEY-----\n" + BASE64 + "\n-----END RSA PRIVATE" + " KEY-----"

PUBLIC = """
    AMLARC_NUM_WORKER AML_JOB_ID AZUREML_CR_DISTRIBUTED_CONFIG AZUREML_CR_NODE_RANK
    AZUREML_NODE_COUNT AZUREML_RUN_ID AZ_BATCHAI_MPI_MASTER_NODE AZ_BATCH_HOST_LIST CCP_NODES
    COORDINATOR_ADDRESS CUDA_VISIBLE_DEVICES FI_PROVIDER FLUX_TASK_RANK GLOO_SOCKET_IFNAME
    GROUP_RANK HYDI_CONTROL_FD HYDRA_BSTRAP_NODE_ID I_MPI_PIN_INFO KUBERNETES_SERVICE_HOST
    LAUNCHER_NPROC_PER_NODE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_IP MASTER_PORT
    MPI_LOCALNRANKS MPI_LOCALRANKID MV2_COMM_WORLD_RANK NCCL_IB_HCA NCCL_IB_PKEY
    NCCL_SOCKET_IFNAME NODE_RANK OMPI_COMM_WORLD_RANK OMPI_MCA_orte_local_daemon_uri
    OMP_NUM_THREADS PALS_RANKID PET_NODE_RANK PMIX_NAMESPACE PMIX_SERVER_URI2 PMI_FD PMI_RANK
    POD_NAME PRTE_LAUNCHED RANK ROLE_WORLD_SIZE SKYPILOT_NODE_IPS SLURMD_NODENAME
    SLURM_JOB_NODELIST SLURM_PROCID SM_HOSTS SM_RESOURCE_CONFIG TF_CONFIG
    TORCHELASTIC_RESTART_COUNT UCX_NET_DEVICES VC_WORKER_HOSTS VK_TASK_INDEX WORLD_SIZE
"""

PRIVATE = """
    HOME AWS_SECRET_ACCESS_KEY HF_TOKEN WANDB_API_KEY MY_VARIABLE SSH_AUTH_SOCK rank
    AZUREML_RUN_TOKEN AZUREML_ARM_SUBSCRIPTION AZUREML_PARAMETER_password SM_HPS
    AZ_BATCH_AUTHENTICATION_TOKEN AZ_BATCHAI_STORAGE_SAS AZ_BATCHAI_SASURL LAUNCHER_TOKEN
    LAUNCHER_API_KEY LAUNCHER_KEY LAUNCHER_KEY_FILE LAUNCHER_apikey LAUNCHER_ACCESSKEY_ID
    LAUNCHER_JOB-KEY LAUNCHER_job.key SLURM_JWT SLURM_AUTH PMI_SHARED_SECRET HOROVOD_SECRET_KEY
    AZUREML_CR_INSTRUMENTATION_KEY OMPI_MCA_password OMPI_MCA_passwd PMIX_COOKIE POD_CREDENTIALS
    NCCL_SIGNATURE SKYPILOT_PRIVATE_THING VC_PWD UCX_CONNECTION_STRING MASTER_PASSPHRASE
"""


@pytest.mark.parametrize("name", PUBLIC.split())
def test_name_that_explains_a_job_is_public(name: str) -> None:
    """What sources, frameworks and fabrics read may be in a snapshot."""
    assert is_public_name(name)


@pytest.mark.parametrize("name", [*PRIVATE.split(), "", "SLURM_\udcff", "OMPI_\u00e9"])
def test_other_name_is_not_public(name: str) -> None:
    """A name that is not on the list, or sounds like a secret's, stays at home."""
    assert not is_public_name(name)


@given(
    st.sampled_from(["SLURM_", "OMPI_", "LAUNCHER_", "AZ_BATCH_", "NCCL_"]),
    st.sampled_from(["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY", "AUTH"])
    | st.sampled_from(["SAS", "SIGNATURE", "COOKIE", "Token", "secret", "Key"]),
    st.sampled_from(["", "_X", "S", "_0"]),
)
def test_secret_name_is_never_public(prefix: str, secret: str, suffix: str) -> None:
    """A public prefix does not make a secret's name public."""
    assert not is_public_name(prefix + secret + suffix)


# What stands in a value: (text with {}, what to put there).
HIDDEN = [
    ("https://acct.blob.core.windows.net/c/b?sv=2021-06-08&se=2026-01-01&sr=b&sig={}", BASE64),
    ("https://h/c?sig={}&se=2026-01-01T00%3A00%3A00Z&sp=r", "aB3%2F" * 7 + "%3D"),
    ("next=https%3A%2F%2Fh%2Fc%3Fsig%3D{}", "aB3%252F" * 7),
    ("https://s3/b?X-Amz-Expires=60&X-Amz-Signature={}", HEX40),
    ("https://h/api/run?code={}", BASE64),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", BASE64),
    ("Endpoint=sb://h/;SharedAccessKeyName=reader;SharedAccessKey={}", BASE64),
    ("BlobEndpoint=https://h/;SharedAccessSignature={}", BASE64),
    ("Server=h;Uid=sa;Pwd={};Database=d", PASSWORD),
    ("InstrumentationKey={};IngestionEndpoint=https://h/", "89a01da5-907f-42a6-96e4-8d2e6a22c869"),
    *(("authorization: Basic {}", "dXNlcjpwdw=="), ('{{"Authorization": "{}"}}', "Bearer abc.def")),
    *(("curl -H 'x: bearer {}'", "aB3" * 8), ("Cookie: {}", "sid=1; user=2")),
    *(("https://{}@host/path", f"user:{PASSWORD}"), ("https://{}@host/path", "user:p@ss")),
    ("git clone https://{}@github.com/a/b", "sometoken"),
    ("postgresql://{}@db:5432/x", f"user:{PASSWORD}"),
    *(("redis://{}@cache", f":{PASSWORD}"), ("train.py --token {} --lr 1", "X")),
    *(("train.py --token '{}' --lr 1", "X y"), ('train.py --token "{}" --lr 1', 'X \\" y')),
    *(("train.py --api-key={} --lr 1", "X"), ("train.py -password {}", "X")),
    ("['train.py', '--password', '{}', '--lr', '1']", "X y"),
    ('["train.py", "--hf_token", "{}", "--lr", "1"]', "X y"),
    *(("HF_TOKEN={} python train.py", "X"), ("export WANDB_API_KEY={}", HEX40), ("wandb key={}", HEX40)),
    *(('{{"key": "{}"}}', HEX40), ("password={}", "none-of-yours")),
    *(("{{'password': '{}', 'x': 1}}", "it\\'s"), ('{{"password": "{}", "x": 1}}', 'a\\"b')),
    ('{{"password":{},"x":1}}', "1234"),
    ('{{"a": "{{\\"password\\": \\"{}\\", \\"x\\": 1}}"}}', "a b"),
    ('{{"a": "{{\\"password\\": \\"{}\\", \\"x\\": 1}}"}}', 'a\\\\\\"b'),
    *(('{{"cmd": "run --password={}"}}', PASSWORD), ("before {} after", PEM), ("before {}", PEM[:60])),
    ("Bearer%20{}", JWT),
]


@pytest.mark.parametrize(("text", "secret"), HIDDEN)
def test_secret_in_value_is_hidden(text: str, secret: str) -> None:
    """The secret is replaced, and what stands around it is not."""
    assert text.format(MARKER) == redact(text.format(secret))


# Values that launchers and platforms really set (recorded), and near misses.
UNTOUCHED = [
    *("", "0", "nodeA,nodeB", "node[1-3,07-11]", "2(x2),1", "10.0.0.4;10.0.0.5", "10.0.0.4:6000"),
    *("2 10.0.0.4 1 10.0.0.5 1", "tvm-1219235766_3-20160919t172711z"),
    "/mnt/batch/tasks/workitems/batchjob001/job-1/task001/wd",
    *("prterun-nodeA-26578@0.0;tcp4://127.0.0.1:57951", "prterun-nodeA-26578@1"),
    *("3544449024.0;tcp://10.77.0.4:59933", "3600875520.0;tcp://10.77.0.4,172.17.0.1:38783"),
    "1.0;tcp6://[fe80::1,::1]:38783;tcp://10.0.0.4:5;prterun-nodeA-26578@0.1",
    *("1ef3625019ca55b0-e7b0fe0e62be3252", "5a680000-5f95-f8f0-b760-060047ce2e75"),
    *("89a01da5-907f-42a6-96e4-8d2e6a22c869", "8b2821ccdc9c9fb818502c0e69b96572"),
    *("/tmp/ompi.nodeA.0/pid.26534/pmix_dstor_ds21_26534", "/opt/mpi/sim/dump.py /opt/mpi/out ompi5011"),
    *("^singleton", "^s1,s2,cray,isolated", "2:0 0,1 1", "49152,2097152,503316480"),
    *("Intel(R) Xeon(R) Processor", "sim:10.77.0.4:6817:9728:109", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    "/tmp/torchelastic_5yrxiugf/job1_j2fp7rgi/attempt_0/0/error.json",
    "azureml-workloads-8b2821ccdc9c9fb818502c0e69b96572-worker-0.svc.cluster.local",
    *("[a-zA-Z0-9\\-]*-([a-zA-Z]*)-([0-9]*)", "http://127.0.0.1:12342/token"),
    "https://westeurope.api.azureml.ms/discovery",
    '{"cluster":{"worker":["host0:2222","host1:2222"]},"task":{"type":"worker","index":0}}',
    '{"cluster":{"worker":["secret:2222","token:2222"]}}',
    '{"rank":"VK_TASK_INDEX","host_list":["worker-0.ns.svc.cluster.local"],'
    '"remote_grpc":{"Tcp":{"lifecycler_port":13333,"executor_port":13334}}}',
    '{"cluster_name":"k8s-compute","node_id":{"EnvironmentVariable":"POD_NAME"},"vm_id":null}',
    *("mlx5_0:1,mlx5_1:1", "=eth0,eth1", "PATH=/usr/bin:/bin HOME=/root PWD=/root OLDPWD=/"),
    "--tokenizer gpt2 --max_tokens 4096 --max-tokens=4096 --token-file /run/token",
    *("--use-auth-token --lr 0.1", "--use_token=True --token=none"),
    '{"use_auth_token": true, "token": null, "token": ""}',
    *("sort_key=timestamp_of_creation_of_row key=value", "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19"),
    "task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa sk-learn-training-worker-0",
    "SharedAccessKeyName=RootManageSharedAccessKey",
    "ssh://git@github.com/a/b git@github.com:a/b user@host",
    *("commit 0123456789abcdef0123456789abcdef01234567", "wait for signature=ok sig=9"),
    *("-----BEGIN PUBLIC KEY-----", f"token={MARKER}"),
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_ordinary_value_is_untouched(text: str) -> None:
    """What a platform sets to describe a job comes through as it is."""
    assert text == redact(text)


def test_json_stays_json() -> None:
    """A JSON value whose strings hold secrets can still be read, and has the same shape."""
    value = {"token": 'a"b\\', "list": [{"password": "x"}], "url": "https://u:p@h", "n": 1}
    expected = {"token": MARKER, "list": [{"password": MARKER}], "url": f"https://{MARKER}@h", "n": 1}
    assert expected == json.loads(redact(json.dumps(value)))


fragments = st.sampled_from(
    [
        *["password", "token", "key", "sig", "Authorization", "Cookie", "--", "-", "=", ":", ": "],
        *[" ", "\t", "\n", '"', "'", "\\", '\\"', "://", "@", "/", "?", "&", ";", ",", "{", "}"],
        *["%3D", "%20", "Bearer ", "Basic ", "none", "true", "http", "tcp", "eyJ", ".", "a", "A1b"],
        *[MARKER, "<", ">", "redacted", HEX40, BASE64, JWT, AWS, PEM, KNOWN[0], "\udcff", "\x00"],
    ]
)
hostile = st.lists(fragments | st.text(max_size=3), max_size=12).map("".join)
anything = hostile | st.text(st.characters(), max_size=40)


@given(anything)
@example("Authorization: Bearer abc")
@example(f"password=a{MARKER}")
def test_redacting_twice_changes_nothing(text: str) -> None:
    """Redacted text is a fixed point; no text, lone surrogates included, raises."""
    once = redact(text)
    assert once == redact(once)


@given(anything, st.sampled_from(KNOWN), st.sampled_from([" ", "\n", "/", ",", '"']))
@example("", f"1//0{'aB3-' * 12}", "/")
def test_known_secret_never_survives(text: str, secret: str, edge: str) -> None:
    """A secret that tells what it is is hidden whatever stands before and after it.

    To one that is base64 alone a slash is no edge: it is one of its letters.
    """
    assume(secret not in text and not (edge == "/" and re.fullmatch(r"[A-Za-z0-9+/]{40,}=*", secret)))
    assert secret not in redact(text + edge + secret + edge + text)


@given(st.text(st.characters(exclude_characters="\"'`&;\\ \t", exclude_categories=["Zs", "Cc"])))
def test_value_after_secret_name_never_survives(value: str) -> None:
    """Whatever characters it has, a bare value after a secret's name is hidden to its end."""
    secret = "Qx" + "".join(value.split())
    assert f"a password={MARKER} b" == redact(f"a password={secret} b")


COMMANDS = {
    "train --lr 1": "train --lr 1",
    "train --token X --lr 1": f"train --token {MARKER} --lr 1",
    "train --api-key=X": f"train --api-key={MARKER}",
    "train --password X": f"train --password {MARKER}",
    "train --password=X": f"train --password={MARKER}",
    "train -password X": f"train -password {MARKER}",
    f"train --key {HEX40}": f"train --key {MARKER}",
    f"train --key={HEX40}": f"train --key={MARKER}",
    "train --key name": "train --key name",
    "mpirun -x HF_TOKEN=X -x RANK": f"mpirun -x HF_TOKEN={MARKER} -x RANK",
    "env HF_TOKEN=X train": f"env HF_TOKEN={MARKER} train",
    "train --use-auth-token --lr 1": "train --use-auth-token --lr 1",
    "train --use_token=True --token none": "train --use_token=True --token none",
    "train --token": "train --token",
    "train --token=": "train --token=",
    "train --tokenizer gpt2 --max-tokens 8": "train --tokenizer gpt2 --max-tokens 8",
    "train --url https://u:p@h/?a=b": f"train --url https://{MARKER}@h/?a=b",
    f"train {JWT}": f"train {MARKER}",
    f"train --flag {AWS}": f"train --flag {MARKER}",
    "token X": "token X",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line_is_redacted(command: str) -> None:
    """Values of secret options are hidden, in both spellings; other arguments stay."""
    assert COMMANDS[command].split() == redact_argv(command.split())


@pytest.mark.parametrize("value", ["a b", "it's", 'a" b', "a&b;c", "\n", "a\\", "-", "x\udcff"])
def test_argument_is_hidden_to_its_end(value: str) -> None:
    """In a command line we know where a value ends, whatever characters are in it."""
    assert [f"--password={MARKER}", "b"] == redact_argv([f"--password={value}", "b"])
    if not value.startswith("-"):
        expected = ["--password", MARKER, "b"]
        assert expected == redact_argv(["--password", value, "b"])


@given(st.lists(anything, max_size=4))
@example(["--password: ", ""])
@example(["--password: ", "abc"])
def test_redacting_a_command_line_twice_changes_nothing(argv: list[str]) -> None:
    """As many arguments come out as went in, and they are a fixed point."""
    once = redact_argv(argv)
    assert len(argv) == len(once)
    assert once == redact_argv(once)


PRINTED = {
    "plain text, caf\u00e9 \u6f22": "plain text, caf\u00e9 \u6f22",
    "C:\\path [a-z\\-]": "C:\\path [a-z\\-]",
    "a\nb\r\tc": "a\\nb\\r\\tc",
    "\x1b[31mred\x1b]0;title\x07": "\\x1b[31mred\\x1b]0;title\\x07",
    "\x00\x7f": "\\x00\\x7f",
    "\x85\x9b": "\\x85\\x9b",
    "\u202egpj.exe\u2066\u200f": "\\u202egpj.exe\\u2066\\u200f",
    "\u2028\u2029\u200b\ufeff": "\\u2028\\u2029\\u200b\\ufeff",
    "byte \udcff": "byte \\udcff",
    "\U000e0001": "\\U000e0001",
}


@pytest.mark.parametrize("text", PRINTED)
def test_unprintable_characters_are_escaped(text: str) -> None:
    """Control characters, overrides, invisible ones and stray bytes become visible."""
    assert PRINTED[text] == printable(text)


@given(st.text(st.characters()))
def test_printable_text_is_one_harmless_line(text: str) -> None:
    """No control character comes out, the result can be encoded, and is a fixed point."""
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert shown == printable(shown)
