"""Generated from proto/ by hack/generate/proto.py; never edited."""
