"""Keeps the waits of generated calls short, so that the time of a run goes into calls. Loaded by api-fuzz.toml."""

import schemathesis

WAIT_MS_MAX = 200
INDEX_MAX = 40


def shortened(values, name, most):
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > most:
        values[name] = value % most


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        shortened(body, "wait_ms", WAIT_MS_MAX)
    return body


@schemathesis.hook
def map_query(context, query):
    if isinstance(query, dict):
        shortened(query, "wait_ms", WAIT_MS_MAX)
        # An index beyond the log's end is waited for, and in the end not reached: 503, as documented.
        shortened(query, "min_index", INDEX_MAX)
    return query
