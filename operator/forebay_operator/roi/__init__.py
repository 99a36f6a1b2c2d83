"""What serving costs now and after each optimization: arithmetic over frozen data, as text, JSON and a page."""
