"""Buckets on the command line."""

from pathlib import Path

from tests.cli.shell import Shell


def test_values_are_put_read_listed_watched_and_removed(shell: Shell, name: str, tmp_path: Path) -> None:
    assert shell.run("buckets", "create", name, "--history", "3", "--json").json["settings"]["history"] == 3
    assert shell.run("buckets", "put", name, "a", "text", "--json").json == {"key": "a", "revision": 1}
    file = tmp_path / "value"
    file.write_text('{"n": 1}')
    shell.run("buckets", "put", name, "b", "--file", str(file), "--content-type", "application/json", "--if-absent")
    shell.run("buckets", "put", name, "c", stdin="from stdin")
    assert shell.run("buckets", "get", name, "a").stdout == "text"
    assert shell.run("buckets", "get", name, "c").stdout == "from stdin"
    assert "Revision mismatch" in shell.invoke("buckets", "put", name, "a", "x", "--if-revision", "7").stderr
    listed = shell.run("buckets", "keys", name, "--values", "--json").json
    assert [(one["key"], one.get("value")) for one in listed] == [("a", None), ("b", {"n": 1}), ("c", None)]
    watched = shell.run("buckets", "watch", name, "--limit", "4").stdout
    assert "ready" in watched and "from stdin" in watched
    shell.run("buckets", "remove", name, "a", "--if-revision", "1")
    assert "delete" in shell.run("buckets", "history", name, "a").stdout
    assert name in shell.run("buckets", "list").stdout
    assert shell.run("buckets", "update", name, "--history", "5", "--json").json["settings"]["history"] == 5
    assert shell.run("buckets", "show", name, "--json").json["settings"]["history"] == 5
    shell.run("buckets", "delete", name, "--yes")
    assert "Bucket not found" in shell.invoke("buckets", "show", name).stderr
