"""tools/bases.sh, which pins what the images stand on: a real skopeo asks a registry that has one image."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.podman import need_containers
from tests.process.starting import ROOT

pytestmark = [pytest.mark.container, pytest.mark.root]

TIMEOUT_S = 60.0
KIND = "application/vnd.oci.image.index.v1+json"
INDEX = json.dumps({"schemaVersion": 2, "mediaType": KIND, "manifests": []}).encode()
"""What a tag of an image for several architectures names."""
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"


class Registry(http.server.BaseHTTPRequestHandler):
    """As much of a registry as it takes to ask for a tag."""

    def do_GET(self) -> None:
        """Answer with the index of the only image."""
        known = {"/v2/": b"{}", "/v2/azureml/base/manifests/latest": INDEX}
        if self.path not in known:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", KIND)
        self.send_header("Content-Length", str(len(known[self.path])))
        self.end_headers()
        self.wfile.write(known[self.path])

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Return its address; skopeo is told in HOME that it speaks no TLS."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = tmp_path / "home" / ".config" / "containers" / "registries.conf"
        settings.parent.mkdir(parents=True)
        address = f"127.0.0.1:{server.server_port}"
        settings.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        yield address
        server.shutdown()


def test_bases_are_pinned_by_digest(registry: str, tmp_path: Path) -> None:
    """Each default has the digest of its tag behind it, also where it had an older one."""
    need_containers()
    copy = tmp_path / "checkout"
    for folder in ("docker", "deploy/compose"):
        shutil.copytree(Path(ROOT, folder), copy / folder)
    (copy / "tools").mkdir()
    shutil.copy(Path(ROOT, "tools", "bases.sh"), copy / "tools")
    files = [path for path in copy.rglob("*") if path.name.endswith(("ockerfile", "compose.yaml"))]
    old = f"{registry}/azureml/base:latest@sha256:{64 * '0'}"
    changed = []
    for path in files:
        lines = path.read_text().splitlines(keepends=True)
        for number, line in enumerate(lines):
            if line.startswith("ARG BASE_IMAGE="):
                lines[number] = f"ARG BASE_IMAGE={old}\n"
            elif "BASE_IMAGE:-" in line:
                lines[number] = f"      BASE_IMAGE: ${{BASE_IMAGE:-{registry}/azureml/base:latest}}\n"
        path.write_text("".join(lines))
        changed += [path] if registry in path.read_text() else []
    environ = {**os.environ, "HOME": str(tmp_path / "home")}
    words = ("bash", str(copy / "tools" / "bases.sh"))
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert len(changed) == 6, "each file that names a base"
    for path in changed:
        assert path.read_text().count(f"{registry}/azureml/base:latest@{DIGEST}") == 1, path
        assert path.read_text().count(registry) == 1, path
