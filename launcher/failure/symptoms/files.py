"""Error messages about checkpoints, models and data: broken, for another model, not to be had from a hub."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

SYMPTOMS = (
    Symptom(
        "checkpoint-mismatch",
        (
            "Error(s) in loading state_dict",
            "size mismatch for ",
            "loaded state dict has a different number of parameter groups",
            "loaded state dict contains a parameter group that doesn't match",
            "You set `ignore_mismatched_sizes` to `False`",
            "using `ignore_mismatched_sizes=True`",
        ),
        "the checkpoint does not belong to this model",
        "the model and the checkpoint of the same configuration; `print(torch.load(PATH).keys())` shows "
        "what it has; a prefix `module.` is DDP's: `model.module.load_state_dict(...)`",
        False,
    ),
    Symptom(
        "checkpoint-refused",
        (
            "Weights only load failed. This file can still be loaded",
            "WeightsUnpickler error: Unsupported global",
            "WeightsUnpickler error: Unsupported class",
            "Object arrays cannot be loaded when allow_pickle=False",
            "require users to upgrade torch to at least v2.6",
        ),
        "the file holds more than tensors, and loading runs no code of it by default",
        "if you trust the file: `torch.load(PATH, weights_only=False)`, `np.load(PATH, allow_pickle=True)`; "
        "else `torch.serialization.add_safe_globals([TheClass])`",
        False,
    ),
    Symptom(
        "checkpoint-corrupt",
        (
            "PytorchStreamReader failed",
            "failed finding central directory",
            "file in archive is not in a subdirectory",
            "invalid load key",
            "pickle data was truncated",
            "unpickling stack underflow",
            "UnpicklingError: unpickling",
            "UnpicklingError: pickle",
            "Ran out of input",
            "unexpected EOF, expected",
            "unexpected EOF. The file might be corrupted",
            "storage has wrong byte size",
            "storage has wrong size",
            "Error while deserializing header",
            "HeaderTooLarge",
            "HeaderTooSmall",
            "InvalidHeader",
            "MetadataIncompleteBuffer",
            "incomplete metadata, file not fully covered",
            "truncated file: eof =",
            "file signature not found",
            "bad magic number in super block",
            "Compressed file ended before the end-of-stream marker",
            "BadZipFile",
            "Bad CRC-32",
            "Not a gzipped file",
            "not an sstable (bad magic number)",
            "DataLossError",
            "corrupted record at",
            "image file is truncated",
            "cannot identify image file",
        ),
        "a checkpoint or data file is broken: cut off, or not what its name says",
        "`ls -l` and `head -c 200` of the file: a text that starts with `version https://git-lfs` needs "
        "`git lfs pull`; else copy it again, or resume from the checkpoint before; write as `torch.save(x, "
        "TMP); os.replace(TMP, PATH)`",
        False,
    ),
    Symptom(
        "hub-rate-limit",
        ("429 Client Error", "429 Too Many Requests", "HTTP Error 429", "Too Many Requests for url"),
        "the server refuses more requests for now",
        "download once and share it: `hf download REPO` before the job, then `HF_HUB_OFFLINE=1` on the "
        "ranks; a token has a higher limit: `hf auth login`",
        True,
    ),
    Symptom(
        "hub-access",
        (
            "gated repo",
            "GatedRepoError",
            "RepositoryNotFoundError",
            "Repository Not Found for url",
            "is not a valid model identifier listed on",
            "Invalid credentials in Authorization header",
            "Invalid user token",
            "Invalid username or password",
            "LocalTokenNotFoundError",
            "Token is required",
            "401 Client Error",
            "401 Unauthorized",
            "403 Client Error*huggingface.co",
            "403 Forbidden: ",
            "doesn't exist on the Hub or cannot be accessed",
        ),
        "the hub does not give this model or data set to this user",
        "accept its terms on its page, then `hf auth login` or `HF_TOKEN=hf_...` in the environment of all "
        "ranks; `hf auth whoami` shows the user; check the name",
        False,
    ),
    Symptom(
        "hub-unreachable",
        (
            "We couldn't connect to '",
            "We couldn't connect to the Hub",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "offline mode is enabled",
            "Cannot reach https://huggingface.co",
            "Couldn't reach the Hugging Face Hub",
            "Couldn't reach '*' on the Hub",
            "Couldn't reach https://",
            "we cannot find the requested files in the local cache",
            "outgoing traffic has been disabled",
            "Max retries exceeded with url*huggingface.co",
            "HTTPSConnectionPool(host='huggingface.co'",
            "HTTPSConnectionPool(host='cdn-lfs",
        ),
        "the Hugging Face hub cannot be reached, or offline mode is on, and the file is not in the cache",
        "where there is a network: `hf download REPO`; then the same `HF_HOME` for the job, with "
        "`HF_HUB_OFFLINE=1`; or unset HF_HUB_OFFLINE; behind a proxy `HTTPS_PROXY=...`",
        None,
    ),
    Symptom(
        "tokenizer-error",
        (
            "does not have a padding token",
            "Can't load tokenizer for",
            "Couldn't instantiate the backend tokenizer",
            "Unable to create tensor, you should probably activate truncation and/or padding",
            "data did not match any variant of untagged enum",
            "Error while parsing*tokenizer",
            "Tokenizer class * does not exist",
        ),
        "the tokenizer cannot be made, or cannot do what is asked of it",
        "padding: `tokenizer.pad_token = tokenizer.eos_token`; a batch: `tokenizer(..., padding=True, "
        "truncation=True)`; a missing or newer file: `tokenizer.save_pretrained(DIR)` beside the model, "
        "`pip install -U tokenizers transformers`",
        False,
    ),
    Symptom(
        "certificate-refused",
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "SSLCertVerificationError"),
        "the certificate of a server is not trusted here",
        "`apt-get install ca-certificates`; behind a proxy of the company its certificate: "
        "`REQUESTS_CA_BUNDLE=/path/ca.pem` and `SSL_CERT_FILE=/path/ca.pem`",
        False,
    ),
    Symptom(
        "network-timeout",
        (
            "TimeoutError: timed out",
            "timeout: timed out",
            "Read timed out",
            "The read operation timed out",
            "ConnectTimeout",
            "ReadTimeout",
            "ConnectionTimeout",
            "Connection timed out",
            "Network is unreachable",
            "No route to host",
        ),
        "a server did not answer in time",
        "`curl -v URL` in this container shows whether it is reached; the proxy (`HTTPS_PROXY`, `no_proxy`) "
        "and the firewall; a hub: `HF_HUB_DOWNLOAD_TIMEOUT=60`",
        True,
    ),
)
