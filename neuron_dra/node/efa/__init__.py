"""The DRA driver of EFA interfaces, in the plugin's process (docs/efa.md)."""
