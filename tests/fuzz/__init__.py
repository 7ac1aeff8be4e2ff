"""The targets of `make fuzz`, and a short run of them."""
