"""The runtime's protocol on the wire: multiplexed connections, ttrpc, protobuf. No I/O."""
