"""The process that tries forms: one line of JSON in, one out. It holds nothing, and may be killed at any time."""

from __future__ import annotations

import json
import signal
import sys

MEMORY_BYTES = 2 << 30
SECONDS = 10  # more than whoever asked waits: then nobody wants the answer, and nobody may be left to kill us


def main() -> None:
    import resource

    from llguidance import LLMatcher, LLTokenizer

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is at
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    letters = LLTokenizer("byte")  # one token per byte: what matters here does not depend on the vocabulary
    print("{}", flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        signal.alarm(SECONDS)
        make = LLMatcher.grammar_from_json_schema if kind == "json_schema" else LLMatcher.grammar_from_lark
        grammar = make(text)
        matcher = LLMatcher(letters, grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        signal.alarm(0)
        answer = {"error": matcher.get_error().split("\n")[0]} if matcher.is_error() else {"grammar": grammar}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
