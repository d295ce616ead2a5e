"""From a sweep file to a folder of finished runs."""
