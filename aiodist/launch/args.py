"""The command lines of both forms of the launcher, turned into a `JobSpec`."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from aiodist.errors import InvalidUsageError
from aiodist.launch.counting import process_count
from aiodist.launch.outlets import OutputOptions
from aiodist.launch.remote.host_list import HostSlots, parse_hosts, read_hostfile, take_slots
from aiodist.launch.spec import MOST_RANKS, JobSpec
from aiodist.launch.target import module_program, plain_program, script_program

_COUNT = re.compile(r"(?:-np?|--np|--nproc[-_]per[-_]node)(?:$|=|\d)")
_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")
"""What argparse says of a value that an option does not take."""

_OF_A_RANK = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)

_NEAR = 0.75
"""The least similarity of a mistyped option and a suggested one, as --tranport and --master-port differ."""

_COUNT_ELSEWHERE = re.compile(r"--?(?:n|np|N|nprocs?|num[-_]proc(?:s|esses)|world[-_]size)$")
"""The option for the number of processes as other launchers spell it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence about a ``name`` that is not in ``known``, with the nearest that is."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"there is no {kind} {name!r}: {hint}"


class _HelpFormatter(argparse.HelpFormatter):
    """Wrap descriptions, and leave the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and raises instead of ending the process."""

    def __init__(self, *, prog: str, description: str, examples: Sequence[str] = ()) -> None:
        """``examples``: command lines for the end of the help, each with what it does."""
        super().__init__(
            prog=prog,
            description=description,
            epilog="\n".join(["examples:", *(f"  {line}" for line in examples)])
            if examples
            else None,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self.suggest_on_error = False  # Python's own, from 3.15 on; `error` suggests
        self._argv: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if found := _CHOICE.fullmatch(message):
            argument, name, choices = found.groups()
            known = re.findall(r"[^', ]+", choices)
            message = unknown(f"value for {argument}", name, known)
        if "are required: " in message:  # perhaps since it was a misspelt --help
            for name in (word.partition("=")[0] for word in self._argv):
                if name.startswith("--") and name not in {"--", *self._option_string_actions}:
                    self._refuse(name)
        message = message.removesuffix(", ...")  # of a script, which Python 3.13 leaves out
        if message.endswith("required: script"):
            message = f"no script is named; it goes after the options: {self.prog} ... train.py"
        raise InvalidUsageError(message)

    def _known(self) -> list[str]:
        """Return the options. If an option has two spellings, return the one with dashes."""
        known = self._option_string_actions
        return [each for each in known if each.replace("_", "-") not in known or "_" not in each]

    def _refuse(self, word: str) -> NoReturn:
        """Raise InvalidUsageError for an unknown option or argument."""
        if not word.startswith("-"):
            raise InvalidUsageError(f"unexpected argument {word!r}")
        name, known = word.split("=", 1)[0], self._known()
        close = difflib.get_close_matches(name, known, 1, _NEAR)
        if "--nproc-per-node" in known and _COUNT_ELSEWHERE.match(name):
            close = ["-n" if "-n" in known else "--nproc-per-node"]
        hint = f" (did you mean {close[0]}?)" if close else ""
        takes_script = any(action.dest == "script" for action in self._actions)
        own = "; options of the script itself go after its name" if takes_script else ""
        raise InvalidUsageError(f"unknown option {name}{hint}{own}")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the parsed options. An unknown one raises InvalidUsageError with the nearest known one."""
        self._argv = argv
        args, left = self.parse_known_args(argv)
        if left:
            self._refuse(left[0])
        for action in self._actions:
            is_path = action.metavar in ("DIR", "FILE") and action.option_strings
            if is_path and getattr(args, action.dest) == "":
                kind = "folder" if action.metavar == "DIR" else "file"
                raise InvalidUsageError(
                    f"{action.option_strings[0]} is empty: name a {kind}, or leave it out"
                )
            if action.nargs == argparse.REMAINDER:
                rest = getattr(args, action.dest)
                # argparse takes a "--" away that stands right before the rest.
                if argv[len(argv) - len(rest) - 1] == "--":
                    rest.insert(0, "--")
        return args


def launch_parser() -> Parser:
    """Return the parser of ``python -m aiodist.launch``: the options of the early torch launcher."""
    parser = Parser(
        prog="python -m aiodist.launch",
        description="Start a script once for each rank of this node and stop all when one fails.",
    )
    parser.add_argument(
        "--nproc_per_node",
        "--nproc-per-node",
        metavar="N",
        help="processes to start on this node: a number, 'cpu', 'gpu' or 'auto' (default 1)",
    )
    parser.add_argument(
        "--use_env",
        "--use-env",
        action="store_true",
        help="do not pass --local_rank=K to the script; it reads LOCAL_RANK",
    )
    _add_common(parser)
    parser.set_defaults(log_dir=None, show_ranks=None, fold=False, env=[], tag="", summary=False)
    parser.set_defaults(trace=None, hosts=None, hostfile=None, ssh="ssh")
    return parser


def run_parser() -> Parser:
    """Return the parser of ``aiodist run``."""
    parser = Parser(
        prog="aiodist run",
        description="Start a script in N processes and stop all when one fails. "
        "The script finds its place in RANK, LOCAL_RANK and WORLD_SIZE.",
        examples=(
            "aiodist run -n 4 train.py --epochs 3             4 ranks on this machine",
            "aiodist run -n 4 -m package.train                a module, as in python -m",
            "aiodist run -n 4 --log-dir logs --fold train.py  a file a rank, equal lines once",
            "aiodist run -H host1:4,host2:4 train.py          8 ranks on two hosts, over ssh",
        ),
    )
    parser.add_argument(
        "-n",
        "-np",
        "--np",
        "--nproc-per-node",
        "--nproc_per_node",
        dest="nproc_per_node",
        metavar="N",
        help="processes to start on this node: a number, 'cpu', 'gpu' or 'auto' (default 1); "
        "with hosts, on all of them together (default: all slots)",
    )
    _add_hosts(parser)
    _add_output(parser)
    parser.add_argument(
        "--tag",
        default="",
        metavar="NAME",
        help="the job's name, for aiodist top, why, dumps, traces and the summary (AIODIST_RUN_ID)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for all ranks; may be given several times",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write a trace of all operations of all ranks, for ui.perfetto.dev, or a picture if it "
        "ends in .svg (one node)",
    )
    _add_common(parser)
    parser.set_defaults(use_env=True, summary=True)
    return parser


def add_nodes(parser: Parser) -> None:
    """Add the options by which several launchers, one on each node, start one job; see `nodes_of`."""
    nodes = parser.add_argument_group("several nodes (start one launcher on each)")
    nodes.add_argument("--nnodes", default="1", metavar="N", help="nodes of the job (default 1)")
    nodes.add_argument(
        "--standalone",
        action="store_true",
        help="say that the job has this node alone, and meets at a free port; so it is anyway "
        "where no other node and no port is named",
    )
    nodes.add_argument(
        "--node_rank",
        "--node-rank",
        type=int,
        default=0,
        metavar="K",
        help="number of this node, from 0 (default 0)",
    )
    nodes.add_argument(
        "--master_addr",
        "--master-addr",
        metavar="HOST",
        help="address of node 0 (default: MASTER_ADDR; 127.0.0.1 for one node)",
    )
    nodes.add_argument(
        "--master_port",
        "--master-port",
        type=int,
        metavar="PORT",
        help="port for rank 0 to listen on (default: a free one that is reserved; "
        "with several nodes MASTER_PORT or 29500)",
    )


def _add_hosts(parser: Parser) -> None:
    hosts = parser.add_argument_group("several hosts (started from here, over ssh)")
    named = hosts.add_mutually_exclusive_group()
    named.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,...",
        help="where the ranks run, and how many on each: -H host1:4,host2:4",
    )
    named.add_argument(
        "--hostfile",
        metavar="FILE",
        help="the same from a file: 'host1 slots=4' or 'host1:4' a line",
    )
    hosts.add_argument(
        "--ssh",
        default="ssh",
        metavar="COMMAND",
        help="how to reach a host, with options: --ssh 'ssh -p 2222 -i key' (default: ssh)",
    )


def _add_output(parser: Parser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument(
        "--log-dir",
        "--log_dir",
        metavar="DIR",
        help="also write each rank's lines to a file, DIR/rankN.log",
    )
    output.add_argument(
        "--show-ranks",
        "--show_ranks",
        type=_rank_list,
        metavar="N,N-N",
        help="show the lines of these ranks only, as 0 or 0,4-7; a failed rank's traceback is shown "
        "in any case",
    )
    output.add_argument(
        "--fold",
        action="store_true",
        help="show equal lines of several ranks once, as '[0-3] line', a quarter second later",
    )


def _rank_list(text: str) -> frozenset[int]:
    """Return the ranks of a text such as ``0,4-7``. Raises ArgumentTypeError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not dash:
            last = first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < MOST_RANKS):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks: write 0 or 0,4-7")
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def _words(command: str) -> tuple[str, ...]:
    """Return the words of ``--ssh``. Raises InvalidUsageError."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidUsageError(f"--ssh {command!r} is no command line: {error}") from None


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables of ``--env``. Raises InvalidUsageError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InvalidUsageError(f"--env takes NAME=VALUE, not {pair!r}")
        if name in _OF_A_RANK:
            raise InvalidUsageError(f"--env {name}: the launcher sets {name} for each rank")
        found[name] = value
    return found


def _add_common(parser: Parser) -> None:
    add_nodes(parser)
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name, as in python -m"
    )
    parser.add_argument(
        "--no_python",
        "--no-python",
        action="store_true",
        help="the script is a program of its own: do not start it by Python",
    )
    parser.add_argument(
        "--no_prefix",
        "--no-prefix",
        "--raw",
        action="store_true",
        help="let the ranks write to the screen themselves, without '[rank]' before each line",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time between asking ranks to stop and killing them (default 5)",
    )
    parser.add_argument(
        "--max_restarts",
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start ranks that failed anew, up to N times: the failed one alone where the script "
        "has called register_elastic(), else all (default 0; one node)",
    )
    parser.add_argument(
        "--keep_going",
        "--keep-going",
        action="store_true",
        help="leave the other ranks alone when one fails, for a script that calls shrink(); the "
        "exit code is still that of the first that failed",
    )
    parser.add_argument("script", help="the script (module, program) to start")
    parser.add_argument(
        "script_args", nargs=argparse.REMAINDER, metavar="...", help="its own arguments"
    )


def job_spec(args: argparse.Namespace, environment: Mapping[str, str]) -> JobSpec:
    """Return the job that parsed options ask for. Raises InvalidUsageError if they are invalid."""
    if args.module and args.no_python:
        raise InvalidUsageError("-m and --no_python exclude each other: leave one out")
    if args.no_python and not args.use_env:
        raise InvalidUsageError(
            "--no_python needs --use_env as well: only a Python script is passed --local_rank"
        )
    nodes = nodes_of(args, environment)
    variables = _variables(args.env)
    if args.trace and nodes.nnodes > 1:
        raise InvalidUsageError(
            "--trace is for a job on one node: on several, set AIODIST_TRACE_DIR to a folder that "
            "all of them share, and run 'aiodist trace' on it afterwards"
        )
    hosts = _hosts_of(args)
    if hosts and args.trace:
        raise InvalidUsageError("--trace is for a job on this machine: leave it out, or -H")
    count = "1" if hosts or args.nproc_per_node is None else args.nproc_per_node
    if args.module:
        program = module_program(args.script, variables.get("PYTHONPATH", ""))
    elif args.no_python:
        program = plain_program(args.script, variables.get("PATH"))
    else:
        program = script_program(args.script)
    return JobSpec(
        program=program,
        arguments=tuple(args.script_args),
        nproc=process_count(count),
        nnodes=nodes.nnodes,
        node_rank=nodes.node_rank,
        hosts=hosts,
        ssh=_words(args.ssh) or ("ssh",),
        master_addr=args.master_addr if hosts else nodes.master_addr,
        master_port=nodes.master_port,
        pass_local_rank=not args.use_env,
        prefix=not args.no_prefix,
        grace=args.grace,
        max_restarts=args.max_restarts,
        keep_going=args.keep_going,
        output=OutputOptions(
            log_dir=None if args.log_dir is None else Path(args.log_dir),
            shown=args.show_ranks,
            fold=args.fold,
            summary=args.summary,
        ),
        tag=args.tag,
        environment={**environment, **variables},
        given=frozenset(variables),
    )


def _hosts_of(args: argparse.Namespace) -> tuple[HostSlots, ...]:
    """Return the hosts that the options name, with a slot for each rank; an empty tuple without them."""
    if args.hosts is None and args.hostfile is None:
        return ()
    named = read_hostfile(args.hostfile) if args.hosts is None else parse_hosts(args.hosts)
    count = args.nproc_per_node
    if count is not None and not count.strip().isdecimal():
        raise InvalidUsageError(
            f"with hosts, -n is a number, not {count!r}; it may be left out, for all slots"
        )
    return take_slots(named, None if count is None else process_count(count))


def misplaced_count(args: argparse.Namespace) -> str | None:
    """Return an option for the number of processes that stands after the script, if none is before it."""
    if args.nproc_per_node is None:
        for word in args.script_args:
            if _COUNT.match(word):
                return str(word)
    return None


class Nodes(NamedTuple):
    """The nodes of a job, as `JobSpec` has them."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int | None


def nodes_of(args: argparse.Namespace, environment: Mapping[str, str]) -> Nodes:
    """Return what the options of `add_nodes` say. Raises InvalidUsageError if an address is missing."""
    nnodes = _node_count(args.nnodes)
    address, port = args.master_addr, args.master_port
    if args.standalone and (nnodes > 1 or address or port is not None):
        raise InvalidUsageError(
            "--standalone is for a job on this node alone, at a free port: leave it out, or "
            "--nnodes, --master_addr and --master_port"
        )
    if nnodes > 1:
        address = address or environment.get("MASTER_ADDR")
        port = port if port is not None else _port_from(environment)
        if not address:
            raise InvalidUsageError(
                "a job on several nodes needs --master_addr: the address of node 0, "
                "the same on every node"
            )
    return Nodes(nnodes, args.node_rank, (address or "127.0.0.1").strip("[]"), port)


def _node_count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = " (a range of nodes, as in elastic jobs, is not supported)" if ":" in text else ""
        raise InvalidUsageError(f"--nnodes must be a number, not {text!r}{hint}") from None


def _port_from(environment: Mapping[str, str]) -> int | None:
    text = environment.get("MASTER_PORT")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidUsageError(f"MASTER_PORT must be a number, not {text!r}") from None
