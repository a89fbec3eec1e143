"""The command line: it parses, calls the library, and turns a bad input into one line and exit status 2."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

# Plain help: importing what draws boxes around it takes longer than everything else together.
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    help="Speculative decoding, faster and exact.",
)

PAIR_HELP = "smol, llama, qwen, or TARGET,DRAFT as hub names or folders."
PairOption = Annotated[str, typer.Option("--pair", envvar="SPECLIB_PAIR", help=PAIR_HELP)]
RESULTS = Path(__file__).resolve().parent.parent / "results"
PROMPTS = RESULTS.parent / "prompts" / "short.jsonl"
CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile", help="The lean forward, for plain Llamas and Qwen2s: two to three times as fast on a CPU."
    ),
]
QuantizeOption = Annotated[
    str | None, typer.Option(help="int8 or int4: fewer bits per weight, in the lean forward. Another model.")
]
PairArgument = Annotated[str, typer.Argument(envvar="SPECLIB_PAIR", help=PAIR_HELP)]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        import speclib

        typer.echo(speclib.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def fetch(pair: PairArgument = "smol") -> None:
    """Download a pair's weights, convert and check them, once; print their folders, the target's first."""
    from speclib import pairs

    for folder in filter(None, pairs.fetch(pair)):
        typer.echo(folder)


@app.command()
def doctor(pair: PairOption = "smol") -> None:
    """Say what this machine has, what it lacks for the course, and the remedy."""
    from speclib import doctor

    raise typer.Exit(doctor.report(pair))


@app.command()
def chat(
    text: Annotated[str, typer.Argument(help="What the user says.")],
    pair: PairOption = "smol",
    drafter: Annotated[str, typer.Option(help="Who guesses: model, lookup, lookup+model or none.")] = "model",
    k: Annotated[int, typer.Option(help="Drafts per round.")] = 4,
    max_new: Annotated[int, typer.Option(help="Most tokens to write.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this mass.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens with this share of the top one's p.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same text.")] = None,
    marks: Annotated[bool, typer.Option("--marks", help="Put ‹ › around kept drafts.")] = False,
    compile: CompileOption = False,
    quantize: QuantizeOption = None,
) -> None:
    """Answer one message, streamed as rounds come, and end with a line of statistics."""
    from speclib import chat, pairs
    from speclib.distributions import Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p)
    loaded = pairs.load(pair, compile=compile, quantize=quantize)
    rounds = chat.answer(loaded, text, chat.make_drafter(drafter, loaded), k, sampling, max_new, seed)
    raise typer.Exit(chat.show(loaded, rounds, marks))


@app.command()
def serve(
    pair: PairOption = "smol",
    drafter: Annotated[
        str, typer.Option(help="Who guesses: model, lookup, lookup+model or none; with vllm and sglang also eagle.")
    ] = "model",
    k: Annotated[int, typer.Option(help="Drafts per round.")] = 4,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 is any free one.", min=0, max=65535)] = 8000,
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable with the key that clients must send.")
    ] = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused.")] = 32,
    time_limit: Annotated[float, typer.Option(help="Seconds for a request, waiting included.")] = 300.0,
    engine: Annotated[str, typer.Option(help="speclib; or vllm (run if installed), sglang (printed).")] = "speclib",
    compile: CompileOption = False,
    quantize: QuantizeOption = None,
) -> None:
    """Serve a pair behind an OpenAI-compatible API until Ctrl-C."""
    if engine != "speclib":
        from speclib import engines

        raise typer.Exit(engines.start(engine, pair, drafter, k, host, port))
    key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not key:
        raise ValueError(f"there is no key in the environment variable {api_key_env}: set it, or leave the option out")
    try:
        from speclib import pairs, serve

        settings = {"drafter": drafter, "k": k, "queue": queue, "time_limit": time_limit, "api_key": key}
        serve.serve(pairs.load(pair, compile=compile, quantize=quantize), host, port, **settings)
    except KeyboardInterrupt:  # before the server listened to signals itself
        raise typer.Exit(130) from None


@app.command()
def verify_cost(
    pair: PairOption = "smol",
    shape: Annotated[
        str | None,
        typer.Option(help="Random weights and no download: llama, qwen, smol, or llama-8b,llama-1b and the like."),
    ] = None,
    context: Annotated[int, typer.Option(help="Cached tokens before each pass.")] = 512,
    trials: Annotated[int, typer.Option(help="Passes that count, for each number of tokens.")] = 10,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; left out: the GPU if there is one.")] = None,
    name: Annotated[str | None, typer.Option(help="What the record calls this machine; else its host name.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of records.")] = RESULTS,
    compile: CompileOption = False,
    compare: Annotated[list[Path] | None, typer.Option(help="A record to put into one figure; repeat it.")] = None,
) -> None:
    """Time passes over 1 to 64 tokens, the draft's step and this machine's memory; write a record."""
    from speclib import verify_cost

    if compare:
        typer.echo(verify_cost.compare(compare, out))
    else:
        verify_cost.run(pair, shape, context, trials, device, name, out, compile)


@app.command()
def sweep(
    pair: PairOption = "smol",
    drafters: Annotated[str, typer.Option(help="Who guesses, with commas: model, lookup, lookup+model.")] = "model",
    k: Annotated[str, typer.Option(help="Drafts per round, as 1,2,4 or 1-8.")] = "1-8",
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts (JSON lines with id, kind, prompt); else prompts/short.jsonl.")
    ] = None,
    new: Annotated[int, typer.Option(help="Tokens per run, fewer where the text ends.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    peers: Annotated[bool, typer.Option("--peers", help="Race transformers' own assisted generation, too.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted sweep.")] = False,
    name: Annotated[str | None, typer.Option(help="What the record calls this machine; else its host name.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of records.")] = RESULTS,
    compile: CompileOption = False,
    quantize: QuantizeOption = None,
) -> None:
    """Measure plain and speculative decoding in turns on many prompts; write a record, a table and a figure."""
    from speclib import sweep_run

    file = prompts or sweep_run.PROMPTS
    how = (file, new, temperature, peers, resume, name, out, compile, quantize)
    raise typer.Exit(sweep_run.run(pair, drafters, k, *how))


@app.command()
def bench(
    target: Annotated[str, typer.Option(help="What the row is called.")],
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible address, up to /v1.")
    ] = "http://localhost:8000/v1",
    model: Annotated[str | None, typer.Option(help="Its name there; left out: the only one that is there.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the weights; left out: as pairs are loaded here.")] = None,
    prompts: Annotated[Path, typer.Option(help="JSON lines with id, kind, prompt.")] = PROMPTS,
    concurrency: Annotated[str, typer.Option(help="Numbers of users, one after another.")] = "1,4,16",
    n: Annotated[int, typer.Option(help="Requests of each row at each concurrency.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 128,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="All answers of max-tokens.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    change: Annotated[str, typer.Option(help="What is new about this row, in a line.")] = "",
    speculation: Annotated[
        str | None, typer.Option(help="Asked of speclib's server with each request: model:4, lookup:4 … or none.")
    ] = None,
    served_with: Annotated[
        str | None, typer.Option(help="How another server was started, in the same words; only noted.")
    ] = None,
    against_plain: Annotated[
        bool, typer.Option("--against-plain", help="Send each prompt without speculation, too, in turn.")
    ] = False,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds the key.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Counts the tokens of a chunk: a pair's name, a folder, a hub name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the record calls the machine; else its host name.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of records.")] = RESULTS,
    json: Annotated[bool, typer.Option("--json", help="Print the record.")] = False,
    scoreboard: Annotated[bool, typer.Option(help="Bring SCOREBOARD.md up to date.")] = True,
) -> None:
    """Measure a server by concurrency: TTFT, TPOT and tokens/s; write a record and a row of the scoreboard."""
    from speclib import bench, bench_record

    raise typer.Exit(
        bench_record.main(
            base_url,
            model,
            prompts,
            bench.rows_of(target, speculation, served_with, against_plain),
            bench.Load(bench.numbers(concurrency), n, max_tokens, ignore_eos, temperature),
            precision=precision,
            change=change,
            api_key_env=api_key_env,
            tokenizer=tokenizer,
            name=name,
            out=out,
            as_json=json,
            board=scoreboard,
        )
    )


@app.command()
def scoreboard(
    results: Annotated[Path, typer.Option(help="The folder of records.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="The file to make.")] = RESULTS.parent / "SCOREBOARD.md",
) -> None:
    """Make SCOREBOARD.md anew from the records of the bench."""
    from speclib import scoreboard

    typer.echo(scoreboard.write(results, out))


@app.command()
def distill(
    out: Annotated[Path, typer.Option(help="The folder that the draft is written to.")],
    target: Annotated[
        str, typer.Option(help="The model to guess for: smol, llama, qwen, a hub name or a folder.")
    ] = "smol",
    work: Annotated[Path, typer.Option(help="Where corpus and checkpoint are kept.")] = Path("build/distill"),
    tokens: Annotated[int, typer.Option(help="Size of the corpus.")] = 2_000_000,
    hidden: Annotated[int, typer.Option(help="Width of the draft.")] = 256,
    layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 3,
    vocab_top: Annotated[int, typer.Option(help="How many tokens, the most frequent, it can say.")] = 12_288,
    passes: Annotated[float, typer.Option(help="Passes over the corpus.")] = 6.0,
    tv: Annotated[float, typer.Option(help="Last share of the steps that train on 1 − α, not on KL.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the chats and of the training.")] = 1,
    prompts: Annotated[Path | None, typer.Option(help="Prompts (JSON lines) to measure the speedup on.")] = None,
    full_head: Annotated[
        bool, typer.Option("--full-head", help="Write it as a plain Llama, which any engine loads.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only try the chain, at sizes that teach nothing.")] = False,
) -> None:
    """Train a small draft on a target's own chats; stop it and start it again as you like."""
    from speclib.distill.run import distill
    from speclib.distill.train import Recipe

    recipe = Recipe(hidden=hidden, layers=layers, vocab_top=vocab_top, passes=passes, tv=tv, seed=seed)
    distill(target, out, work, recipe, tokens, seed, prompts, full_head, quick)
    typer.echo(out)


def main() -> None:
    """Run the command line; exit status 2 and one line on stderr for a bad input.

    SPECLIB_DEBUG=1 lets the exception through with its traceback.
    """
    warnings.formatwarning = lambda message, *_, **__: f"speclib: {message}\n"
    try:
        # Not standalone: typer would draw a box of several lines around a wrong option.
        status = app(prog_name="speclib", standalone_mode=False)
    except Exception as error:
        if os.environ.get("SPECLIB_DEBUG") == "1" or not _expected(error):
            raise
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        sys.exit(_one_line(message))
    sys.exit(status or 0)


def _expected(error: Exception) -> bool:
    # Asked of the module only where a command has imported it: importing it here would import PyTorch.
    pairs = sys.modules.get("speclib.pairs")
    kinds = (ValueError, TypeError, *([pairs.PairError] if pairs else []))
    return isinstance(error, kinds) or hasattr(error, "format_message")


def _one_line(message: str) -> int:
    print("speclib: " + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
