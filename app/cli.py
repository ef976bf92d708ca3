"""The command line: `baton serve | web | node | bench | convert | user | key`.

Options override the `BATON_*` variables of `app/settings.py`. Every command imports what it needs
when it runs, so that `--help` answers at once and a web process never loads a node's parts.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from app.node import commands as node_commands
from app.node.commands import RedisUrl
from app.options import DataFolder, refuse, settings_from

_ACCOUNTS = ("user", "key")


class _Commands(TyperGroup):
    """Brings in the commands about accounts, with their database, only where they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ACCOUNTS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _ACCOUNTS:
            return super().get_command(ctx, cmd_name)
        from app import parting_commands

        accounts = typer.Typer(rich_markup_mode=None, add_completion=False)
        accounts.add_typer(parting_commands.user_app, name="user")
        accounts.add_typer(parting_commands.key_app, name="key")
        group = typer.main.get_command(accounts)
        assert isinstance(group, TyperGroup)
        return group.get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Commands,
    help="Baton: the front door for a GPU that serves one request at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(node_commands.app, name="node")

Kind = Annotated[
    str, typer.Option(help="What the node is made of: local (our engine) or scripted (no model).")
]
Model = Annotated[
    str, typer.Option(help="A GGUF file, or demo: the small model that comes with Baton.")
]
Level = Annotated[
    str,
    typer.Option(
        help="How the weights are kept and multiplied: auto, native, fp32, bf16, fp8, int8 or int4. "
        "auto takes native where there are a C++ compiler and AVX2 or AVX-512, otherwise the smallest "
        "of the others that keeps the file's values."
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where the engine computes; auto takes a CUDA device if there is one."),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A smaller model with the same vocabulary that guesses tokens ahead; what it gets right "
        "comes several tokens at a time. The text is the same with and without it.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processor threads of each node's engine. [default: one node: the engine's own choice; "
        "several: they share all cores but one]",
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        min=1,
        max=32,
        help="How many each node serves at once. A node of our own engine serves one.",
    ),
]
Host = Annotated[
    str | None, typer.Option(help="Address to listen on. [default: BATON_HOST or 127.0.0.1]")
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port; 0: any free one. [default: BATON_PORT or 8000]"),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {version('baton-inference')}")
        raise typer.Exit


@app.callback()
def baton(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Baton: the front door for a GPU that serves one request at a time."""


@app.command()
def serve(
    model: Model = "demo",
    kind: Kind = "local",
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Nodes on this machine.")] = 1,
    host: Host = None,
    port: Port = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Also let nodes of other machines join: open the embedded store on this address, "
            "behind a generated password, and print the command to join with.",
        ),
    ] = None,
    level: Level = "auto",
    device: Device = "auto",
    drafter: Drafter = None,
    threads: Threads = None,
    slots: Slots = 1,
    data_folder: DataFolder = None,
) -> None:
    """Run everything on this machine: store, nodes and web, watched and stopped in order.

    Without BATON_REDIS_URL an embedded Valkey is started in the data folder.
    """
    from app.serve import ServeOptions, run_serve

    settings = settings_from(host=host, port=port, data_folder=data_folder)
    _check_kind(kind, slots)
    node_arguments = ["--slots", str(slots)]
    node_arguments += ["--kind", kind, "--model", model, "--level", level]
    if threads is None and nodes > 1:
        # engines that each take every core would only wait for each other; the web needs one too
        threads = max(1, (len(os.sched_getaffinity(0)) - 1) // nodes)
    node_arguments += ["--device", device]
    if drafter is not None:
        node_arguments += ["--drafter", drafter]
    if threads is not None:
        node_arguments += ["--threads", str(threads)]
    raise typer.Exit(run_serve(ServeOptions(nodes, tuple(node_arguments), listen), settings))


@app.command()
def web(
    host: Host = None,
    port: Port = None,
    data_folder: DataFolder = None,
    listener_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the web process: pages, API, accounts and the line. Needs no torch.

    Uses BATON_REDIS_URL, or the store that `baton serve` runs in the same data folder.
    """
    from app.web import run_web

    settings = settings_from(host=host, port=port, data_folder=data_folder)
    raise typer.Exit(run_web(settings, listener_fd))


@node_commands.app.callback(invoke_without_command=True)
def node(
    context: typer.Context,
    pool: Annotated[
        str | None,
        typer.Option(help="The line that this node serves. [default: the model's name]"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Public name, one of a kind in its pool. [default: the host's name]"),
    ] = None,
    kind: Kind = "local",
    model: Model = "demo",
    model_name: Annotated[
        str | None,
        typer.Option(help="Public name of the model. [default: the file's, or scripted]"),
    ] = None,
    level: Level = "auto",
    device: Device = "auto",
    drafter: Drafter = None,
    threads: Threads = None,
    slots: Slots = 1,
    redis_url: RedisUrl = None,
    data_folder: DataFolder = None,
    tokens_per_second: Annotated[
        float, typer.Option(min=0.01, help="Scripted: speed of the answer.")
    ] = 600.0,
    tokens_per_step: Annotated[
        int, typer.Option(min=1, max=64, help="Scripted: most tokens of one step.")
    ] = 4,
    prefill_ms_per_token: Annotated[
        float, typer.Option(min=0, help="Scripted: time to read one token of the prompt.")
    ] = 0.2,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Scripted: length of the answer.")
    ] = 600,
    text: Annotated[
        str | None, typer.Option(help="Scripted: answer this instead of the usual paragraphs.")
    ] = None,
    fail_at: Annotated[
        int | None, typer.Option(min=0, help="Scripted: fail instead of this token.")
    ] = None,
    stall_at: Annotated[
        int | None, typer.Option(min=0, help="Scripted: write nothing more after this many tokens.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Scripted: chooses the sizes of the steps.")] = 0,
) -> None:
    """Run one node. It dials out to the store and needs no open port.

    With a command, look after the nodes there are instead.
    """
    if context.invoked_subcommand is not None:
        return
    from app.node.kinds import KindOptions
    from app.node.kinds.local import LocalModel
    from app.node.kinds.scripted import Script
    from app.node.run import NodeOptions, run_node

    settings = settings_from(redis_url=redis_url, data_folder=data_folder)
    _check_kind(kind, slots)
    script = Script(
        model=model_name or "scripted",
        tokens_per_second=tokens_per_second,
        tokens_per_step=tokens_per_step,
        prefill_ms_per_token=prefill_ms_per_token,
        text=text,
        answer_tokens=answer_tokens,
        fail_at=fail_at,
        stall_at=stall_at,
        seed=seed,
    )
    if pool is not None and not re.fullmatch(r"[\w.:-]{1,200}", pool):
        refuse("--pool takes letters, digits, dots, colons, dashes and underscores, at most 200.")
    kinds = KindOptions(LocalModel(model, level, device, threads, model_name, drafter), script)
    raise typer.Exit(run_node(NodeOptions(kind, pool, name, slots, kinds), settings))


@app.command()
def bench(
    model: Annotated[
        str,
        typer.Option(
            envvar="MODEL_WEIGHTS_DIR",
            help="A GGUF file or a model's folder, or demo: the small model that comes with Baton.",
        ),
    ] = "demo",
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of the longest answer.")] = 256,
    max_input: Annotated[
        int, typer.Option(min=0, help="Longest prompt of the input lengths, which begin at 1,024.")
    ] = 4096,
) -> None:
    """Measure the engine on this machine: a Markdown table, then one line of JSON."""
    from engine.types import EngineError

    try:
        # torch comes in here
        from engine.bench import suite
        from engine.demo_model import demo_model_path

        suite.run(demo_model_path() if model == "demo" else model, tokens, max_input)
    except EngineError as error:
        refuse(str(error))


@app.command()
def convert(
    model_dir: Annotated[
        Path, typer.Option("--model_dir", "--model-dir", help="The downloaded model's folder.")
    ],
    save_dir: Annotated[
        Path, typer.Option("--save_dir", "--save-dir", help="Where to write; made if missing.")
    ],
    model_type: Annotated[
        str,
        typer.Option(
            "--model_type",
            "--model-type",
            help="deepseek-v32 or glm-5 to be sure of what it is; auto takes any model.",
        ),
    ] = "auto",
    shards: Annotated[int, typer.Option(help="Devices to divide the weights among.")] = 8,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every byte with the source afterwards.")
    ] = False,
) -> None:
    """Write a safetensors model as one file per device. Start it again after an interruption."""
    from app import convert_commands

    convert_commands.convert(model_dir, save_dir, model_type, shards, verify)


def _check_kind(kind: str, slots: int) -> None:
    from app.node.kinds import BATCHING_KINDS, NODE_KINDS

    if kind not in NODE_KINDS:
        refuse(f"There is no node kind {kind!r}. Choose {' or '.join(NODE_KINDS)}.")
    if slots > 1 and kind not in BATCHING_KINDS:
        refuse(f"A {kind} node serves one at a time; leave --slots out.")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
