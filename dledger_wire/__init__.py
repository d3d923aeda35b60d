"""What both sides of a wire or a disk must agree on: stubs, frames, batch records, names, errors and the RPC seam."""
