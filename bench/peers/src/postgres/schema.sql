-- One table for each thing that Holdfast keeps, with no index that the load does not need.

CREATE TABLE workflows (
    id text PRIMARY KEY,
    namespace text NOT NULL,
    workflow_type text NOT NULL,
    started timestamptz NOT NULL DEFAULT now()
);

-- The order of a history is that of a sequence over all workflows: a counter in the workflow's row would have every
-- completion update that row as well.
CREATE TABLE events (
    workflow text NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    kind smallint NOT NULL,
    ordinal smallint NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (workflow, seq)
);

-- Claims change nothing that is in the index, and find room on the page of the row, so that they are HOT updates.
-- A completed row is gone: what is left of it is its event.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workflow text NOT NULL,
    ordinal smallint NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    input bytea NOT NULL
) WITH (fillfactor = 50);
