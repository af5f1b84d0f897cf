"""Pulsar's Java clients with tokens, passwords and rights. Opt-in (`make interop`): it needs a JDK 17 and Maven."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from harness.secured import SECRET, TOKEN
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]


@pytest.mark.timeout(900)
def test_every_claim_about_rights_holds_with_the_java_clients(tmp_path: Path) -> None:
    java_program.build()
    users = tmp_path / "users"
    # `openssl passwd -apr1 -salt abcdefgh secret`
    users.write_text("ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")
    settings = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "superUserRoles": "admin",
        "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
        "basicAuthConf": users.as_uri(),
        "authenticationRefreshCheckSeconds": 1,
    }
    with BrokerProcess(tmp_path, settings, token=TOKEN) as broker:
        secret = base64.b64encode(SECRET).decode()
        complaints = tmp_path / "stderr"
        ended = java_program.run("SecurityClaims", broker, secret, "ann", "secret", complaints=complaints)
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
    assert len(ended.lines) == 11
