"""Results of benchmarks as JSON files with a schema, as text, as pictures, as README tables and as docs/results.md."""
