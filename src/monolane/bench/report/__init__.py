"""Results: as files with a schema, as text, as pictures, and as the README's tables and the page of all results."""
