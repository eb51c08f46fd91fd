"""The settings as options of the locust command, and as fields of its web page."""

from argparse import ArgumentParser, BooleanOptionalAction

from trunkline.loadtest.load.settings import Settings

REPORTS = "load-reports"


def add_options(parser: ArgumentParser) -> None:
    """One for each field of Settings, and --reports."""
    group = parser.add_argument_group("Trunkline's traffic")
    plain = Settings()

    def add(name: str, kind: type, text: str, default: object = None) -> None:
        default = getattr(plain, name) if default is None else default
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)

    def ranged(name: str, text: str) -> None:
        add(name, str, text, ":".join(map(str, getattr(plain, name))))

    ranged("inputs", "Tokens of a prompt, N or LOW:HIGH.")
    add("long_share", float, "Share of prompts of --long tokens.")
    add("long", int, "Tokens of a long prompt.")
    add("shared_share", float, "Share of conversations that begin with their tenant's system prompt.")
    add("system", int, "Tokens of a system prompt.")
    ranged("outputs", "Tokens of an answer, N or LOW:HIGH.")
    ranged("turns", "Requests of a conversation, N or LOW:HIGH.")
    add("aged", int, "Of the first conversations, so many are in their midst.")
    add("think", float, "Mean seconds between a user's requests.")
    add("tool_share", float, "Share of conversations of agents: tool results, no pauses.")
    add("cancel_share", float, "Share of requests that the client gives up in their midst.")
    add("tenants", int, "Tenants, each with a system prompt of its own.")
    add("zipf", float, "Exponent of the tenants' popularity.")
    add("api_keys", str, "The tenants' API keys, separated by commas.", "")
    add("rate", float, "Requests per second (open loop). 0: closed loop of --users.")
    add("open_conversations", int, "With --rate: conversations whose turns arrive.")
    add("burst", int, "With --rate: so many requests come at once.")
    add("trace", str, "Trace file to replay at its own arrival times (open loop).", "")
    add("stretch", float, "Factor on the times between the trace's arrivals.")
    add("block_tokens", int, "Tokens of a block of the trace.")
    add("salt", str, "Other salts, other texts of the same lengths.")
    add("seed", int, "Of every choice left to chance.")
    add("model", str, "Name of the model. Empty: the first that the server lists.")
    add("warm_up", float, "Seconds at the beginning that do not count.")
    add("settle", float, "Not 0: the warm-up ends so long after every first conversation has an answer.")
    add("window", float, "Seconds that count, with which the run ends. 0: all until its end.")
    add("max_open", int, "Requests under way in an open loop.")
    group.add_argument("--skip-bad", action=BooleanOptionalAction, default=plain.skip_bad, help="Leave out bad lines.")
    group.add_argument("--reuse", action=BooleanOptionalAction, default=plain.reuse, help="No: nothing is sent twice.")
    group.add_argument("--reports", default=REPORTS, help="Folder in which each run leaves a folder.")
