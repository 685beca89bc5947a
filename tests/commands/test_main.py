"""What a newcomer types wrong gets a sentence that says what to do, at once."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import aiodist.commands.main as cli
import aiodist.commands.run as run_command
from aiodist.commands.exec import parser as exec_parser
from aiodist.errors import InvalidUsageError
from aiodist.launch import counting
from aiodist.launch.args import launch_parser, run_parser
from aiodist.launch.counting import process_count
from aiodist.launch.spec import JobSpec
from aiodist.launch.starting import start
from tests.limits import scaled
from tests.observe.made import part


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "package" / "mod.py").write_text("")
    (tmp_path / "package" / "inner" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner" / "__main__.py").write_text("")
    (tmp_path / "outer" / "space").mkdir(parents=True)
    (tmp_path / "outer" / "space" / "mod.py").write_text("")


@pytest.fixture
def specs(monkeypatch) -> list[JobSpec]:
    """The jobs that would have been started."""
    started: list[JobSpec] = []

    def record(spec: JobSpec) -> int:
        started.append(spec)
        return 0

    monkeypatch.setattr(run_command, "run_job", record)
    return started


MISTAKES = [
    (["run", "trian.py"], "there is no script 'trian.py': did you mean 'train.py'?"),
    (["run", "no/such.py"], "there is no script 'no/such.py' (there is no folder 'no')"),
    (
        ["run", "sh", "train.sh"],
        "no script 'sh'; 'sh' is a program on PATH, which starts with --no_py",
    ),
    (["run", "--standalone", "--nnodes=2", "train.py"], "--standalone is for a job on this node"),
    (["run", "--standalone", "--master_port=29500", "train.py"], "--standalone is for a job"),
    (["run", "folder"], "'folder' is a directory without a __main__.py"),
    (["run", "-n", "0", "train.py"], "must be at least 1, not 0"),
    (["run", "-n", "-3", "train.py"], "must be at least 1, not -3"),
    (["run", "-n", "99999999999", "train.py"], "at most 1,048,576 ranks, not 99,999,999,999"),
    (["run", "-n", "two", "train.py"], "a number, 'cpu', 'gpu' or 'auto', not 'two'"),
    (["run", "-n"], "expected one argument"),
    (["run", "-n", "", "train.py"], "a number, 'cpu', 'gpu' or 'auto', not ''"),
    (["run", "-n", "2"], "no script is named; it goes after the options: aiodist run ... train.py"),
    (["run", "--nprocs", "2", "train.py"], "unknown option --nprocs (did you mean -n?)"),
    (["run", "--world-size=2", "train.py"], "unknown option --world-size (did you mean -n?)"),
    (["run", "--nproc-per-nod", "2", "train.py"], "did you mean --nproc-per-node?"),
    (["run", "--frobnicate", "train.py"], "unknown option --frobnicate; options of the script"),
    (["run", "-n", "-1", "--fodl"], "unknown option --fodl (did you mean --fold?)"),
    (["dump", "--hlep"], "unknown option --hlep (did you mean --help?)\n"),
    (["run", "-m", "no_such_module"], "no module named 'no_such_module'"),
    (["run", "-m", "package.nothing"], "no module named 'package.nothing'"),
    (["run", "-m", "package.mod.deeper"], "'package.mod' is a module, not a package"),
    (["run", "-m", "package"], "'package' is a package without a __main__ module"),
    (["run", "-m", "train.py"], "-m takes a module's name with dots and without .py"),
    (["run", "--no-python", "no-such-program"], "there is no program 'no-such-program'"),
    (["run", "--no-python", "./train.py"], "chmod +x, or name its interpreter before it"),
    (["run", "--log-dir", "", "train.py"], "--log-dir is empty: name a folder, or leave it out"),
    (["run", "--trace=", "train.py"], "--trace is empty: name a file, or leave it out"),
    (["trace", "folder", "--map", ""], "--map is empty: name a file, or leave it out"),
    (["run", "-m", "--no-python", "x"], "exclude each other"),
    (["run", "--nnodes", "2", "train.py"], "needs --master_addr"),
    (["run", "--nnodes", "1:4", "train.py"], "a range of nodes"),
    (["run", "--nnodes", "0", "train.py"], "nodes must be at least 1"),
    (["run", "--node-rank", "1", "train.py"], "the node's rank must be from 0 to 0"),
    (["doctor", "--nnodes", "-3"], "there must be one host at least"),
    (["doctor", "--nnodes", "2", "--master", ""], "--master takes HOST:PORT"),
    (["doctor", "--node-rank", "2", "--nnodes", "2", "--master", "h:1"], "node 2 of 2 hosts"),
    (["simulate", "-s", "99999999G"], "'99999999G' is more than 1 PiB"),
    (["bench", "-s", "4,99999999G"], "'99999999G' is more than 1 PiB"),
    (["run", "--master-port", "70000", "train.py"], "from 1 to 65535, not 70000"),
    (["run", "--grace", "-1", "train.py"], "the grace must be"),
    (["run", "--grace", "nan", "train.py"], "the grace must be"),
    (["run", "--env", "X", "train.py"], "--env takes NAME=VALUE, not 'X'"),
    (["run", "--env", "RANK=3", "train.py"], "the launcher sets RANK for each rank"),
    (["run", "--tag", "a/b", "train.py"], "--tag takes up to 48 letters, digits"),
    (["run", "--show-ranks", "two", "train.py"], "'two' is no list of ranks: write 0 or 0,4-7"),
    (["run", "--show-ranks", "1-0", "train.py"], "'1-0' is no list of ranks: write 0 or 0,4-7"),
    (["run", "--show-ranks", "0-99999999999", "train.py"], "'0-99999999999' is no list of ranks"),
    (
        ["run", "-H", "a:1", "--ssh", "ssh 'x", "train.py"],
        '--ssh "ssh \'x" is no command line: No closing',
    ),
    (["run", "--show-ranks", "1", "train.py"], "there is no rank 1 in a job of ranks 0 to 0"),
    (["run", "--raw", "--fold", "train.py"], "--raw leaves the output to the ranks themselves"),
    (["train.py"], "to start a script: aiodist run train.py"),
    (["frob"], "there is no command 'frob'\nusage: aiodist COMMAND"),
    (["rum", "-n", "2"], "there is no command 'rum': did you mean 'aiodist run'?"),
    (["doctor", "--frobnicate"], "unknown option --frobnicate\naiodist: aiodist doctor --help"),
    (["help", "runn"], "there is no command 'runn': did you mean 'aiodist run'?"),
    (["exec"], "required: program\n"),
    (["trace"], "required: DIR\n"),
    (["top", "a", "b"], "unexpected argument 'b'"),
    (["why", "--timeout", "inf"], "--timeout must be above 0 and at most 3600, not inf"),
    (["why", "--timeout", "nan"], "--timeout must be above 0 and at most 3600, not nan"),
    (["run", "--tranport", "tcp", "train.py"], "unknown option --tranport; options of the script"),
    (["run", "--logdir", "x", "train.py"], "unknown option --logdir (did you mean --log-dir?)"),
    (["dump"], "required: DIR\n"),
    ([], "usage: aiodist COMMAND"),
]


@pytest.mark.parametrize(("argv", "words"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistakes(argv, words, specs, capfd):
    assert cli.main(argv) == 2
    assert words in capfd.readouterr().err
    assert specs == []


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capfd):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr("aiodist.commands.doctor.main", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capfd.readouterr() == ("", "")


def test_the_early_launcher_wants_use_env_with_no_python(specs, capfd):
    assert start(launch_parser(), ["--no_python", "true"]) == 2
    assert "--no_python needs --use_env" in capfd.readouterr().err


@pytest.mark.parametrize("missing", ["script, ...", "script"])
def test_a_missing_script_is_told_in_any_version_of_python(missing: str) -> None:
    with pytest.raises(InvalidUsageError, match="no script is named; it goes after the options"):
        run_parser().error(f"the following arguments are required: {missing}")


def test_a_port_in_use_is_told_before_anything_starts(capfd, tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text("of the job that runs")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert cli.main(["run", "--log-dir", ".", "--master-port", port, "train.py"]) == 2
        assert f"port {port} is already in use" in capfd.readouterr().err
    assert log.read_text() == "of the job that runs"


def test_only_node_0_needs_the_port(capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        options = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port", port]
        assert cli.main(["run", *options, "--node-rank=1", "--no-python", "true"]) == 0
        assert cli.main(["run", *options, "--node-rank=0", "--no-python", "true"]) == 2


@pytest.mark.parametrize(
    "options", [["-np", "3"], ["--np=3"], ["--standalone", "-n", "3"], ["-n3"]], ids=" ".join
)
def test_options_of_other_launchers_are_taken(options, specs):
    assert cli.main(["run", *options, "train.py", "-np", "5"]) == 0
    (spec,) = specs
    assert (spec.nproc, spec.nnodes, spec.master_port) == (3, 1, None)
    assert spec.arguments == ("-np", "5")


def test_a_count_after_the_script_is_noticed(specs, capfd):
    assert cli.main(["run", "train.py", "-n", "4"]) == 0
    assert "-n stands after the script's name" in capfd.readouterr().err
    assert cli.main(["run", "-n", "2", "train.py", "-n", "4"]) == 0
    assert capfd.readouterr().err == ""
    assert specs[1].arguments == ("-n", "4")


def test_a_double_dash_after_the_script_is_the_scripts(specs):
    for words in (["train.py", "--", "-x"], ["--", "train.py", "-x", "--"], ["train.py", "--"]):
        assert cli.main(["run", *words]) == 0
    assert [spec.arguments for spec in specs] == [("--", "-x"), ("-x", "--"), ("--",)]
    assert exec_parser().read(["sh", "--", "-x"]).arguments == ["--", "-x"]


def test_an_installed_module_is_found_beside_a_folder_of_its_name(specs, tmp_path):
    (tmp_path / "json").mkdir()
    assert cli.main(["run", "-m", "json.tool"]) == 0


def test_a_module_in_folders_without_init_files_is_found(specs, capfd):
    assert cli.main(["run", "-m", "outer.space.mod"]) == 0
    assert cli.main(["run", "-m", "outer.space.nothing"]) == 2
    assert "no module named 'outer.space.nothing'" in capfd.readouterr().err
    assert len(specs) == 1


def test_env_gives_the_paths_by_which_modules_and_programs_are_found(specs, tmp_path):
    (tmp_path / "folder" / "tool").touch(0o755)
    (tmp_path / "folder" / "tool.py").touch()
    assert cli.main(["run", "--env", "PYTHONPATH=no:folder", "-m", "tool"]) == 0
    assert cli.main(["run", "--env", "PATH=folder", "--no-python", "tool"]) == 0
    assert [spec.program[-1] for spec in specs] == ["tool", "folder/tool"]


def test_a_program_in_this_folder_is_found_as_the_message_says(specs, tmp_path):
    (tmp_path / "train.py").chmod(0o755)
    assert cli.main(["run", "--no-python", "train.py"]) == 0
    assert specs[0].program == ("./train.py",)


def test_parents_of_a_module_are_not_imported(specs):
    assert cli.main(["run", "-m", "package.mod"]) == 0
    assert cli.main(["run", "-m", "package.inner"]) == 0
    assert cli.main(["run", "-m", "email.mime.text"]) == 0
    assert specs[0].program == (sys.executable, "-m", "package.mod")


def test_words_for_counts(specs, capfd, monkeypatch):
    assert cli.main(["run", "-n", "cpu", "train.py"]) == 0
    cpus = len(os.sched_getaffinity(0))
    assert specs[0].nproc == cpus
    monkeypatch.setattr(counting.glob, "glob", lambda path: [path])
    monkeypatch.setattr(counting, "_gpus", lambda: 3)
    assert process_count("gpu") == process_count("auto") == 3
    monkeypatch.setattr(counting, "_gpus", lambda: 0)
    assert process_count("auto") == cpus
    with pytest.raises(InvalidUsageError, match="torch sees no GPU"):
        process_count("gpu")


def test_several_nodes_take_the_meeting_place_from_the_environment(specs, monkeypatch, capfd):
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert cli.main(["run", "--nnodes", "2", "train.py"]) == 0
    assert (specs[0].master_addr, specs[0].master_port) == ("node0", 1234)
    assert cli.main(["run", "--nnodes", "2", "--master-addr", "x", "train.py"]) == 0
    assert specs[1].master_addr == "x"
    monkeypatch.setenv("MASTER_PORT", "many")
    assert cli.main(["run", "--nnodes", "2", "train.py"]) == 2
    assert "MASTER_PORT must be a number" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EAGAIN, "; raise the limit on processes: ulimit -u"),
        (errno.EMFILE, "; raise the limit on open files: ulimit -n"),
        (errno.EACCES, ""),
    ],
)
def test_a_refusal_of_the_system_is_told(number, advice, monkeypatch, capfd):
    def refuse(spec: JobSpec) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_command, "run_job", refuse)
    assert cli.main(["run", "train.py"]) == 1
    told = f"refuses to start the ranks: [Errno {number}] {os.strerror(number)}{advice}\n"
    assert capfd.readouterr().err.endswith(told)


def test_help_and_version(capfd):
    assert cli.main(["--help"]) == 0
    assert "aiodist run -n 4 train.py" in capfd.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("aiodist ")
    with pytest.raises(SystemExit) as done:
        cli.main(["run", "--help"])
    assert done.value.code == 0


def test_the_launcher_does_not_import_torch():
    script = "import sys, aiodist.commands.main; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=scaled(60))


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """``line`` of a shell, in which ``aiodist`` is the command."""
    line = line.replace("aiodist", f"{sys.executable} -m aiodist")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        ["bash", "-c", line],
        cwd=root,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("asked", ["--help", "why --jobs", "why --help", "simulate -n 2 -s 4"])
def test_a_reader_that_has_ended_and_a_closed_output_give_no_traceback(asked: str) -> None:
    ended = shell(f"(sleep 0.1; exec aiodist {asked}) | exec true; echo ${{PIPESTATUS[0]}}")
    assert ended.stderr == ""
    assert ended.stdout in ("141\n", "0\n")  # nothing is written where no job runs
    closed = shell(f"aiodist {asked} >&-")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_characters_that_stdout_cannot_encode_are_escaped(tmp_path: Path) -> None:
    name = "aiodist-j\u00f6b-rank0.json"
    (tmp_path / name).write_bytes(part(0, size=1).encode())
    done = shell(f"PYTHONIOENCODING=ascii aiodist dump {tmp_path}")
    assert done.stderr == ""
    assert done.stdout.startswith("job j\\xf6b: 1 of 1 ranks")


@pytest.mark.parametrize("command", ["aiodist run", "aiodist.launch --use_env"])
def test_a_command_without_standard_streams_starts_ranks(command: str) -> None:
    done = shell(f"{command} --no-python sh -c 'test -e /dev/fd/0' <&- >&- 2>&-")
    assert done.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize(
    "asked", ["--help", pytest.param("backends", marks=pytest.mark.extended), "why --help"]
)
def test_an_output_that_cannot_be_written_is_told(asked: str) -> None:
    done = shell(f"aiodist {asked} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "aiodist: cannot write the output: [Errno 28] No space left on device\n"
