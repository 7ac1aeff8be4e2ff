"""Generated from proto/ by hack/gen_proto.py; never edited."""
