"""The process that compiles grammars: one line of JSON in, one out. It keeps no state and may be killed any time."""

from __future__ import annotations

import json
import signal
import sys

MEMORY_BYTES = 2 << 30
SECONDS = 10  # for one grammar: longer than the server waits, for the case that no server is left to kill this process


def main() -> None:
    import resource

    from llguidance import LLMatcher, LLTokenizer

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer = LLTokenizer("byte")  # one token per byte: time and memory hardly depend on the vocabulary
    print("{}", flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        signal.alarm(SECONDS)
        make = LLMatcher.grammar_from_json_schema if kind == "json_schema" else LLMatcher.grammar_from_lark
        grammar = make(text)
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        signal.alarm(0)
        answer = {"error": matcher.get_error().split("\n")[0]} if matcher.is_error() else {"grammar": grammar}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
