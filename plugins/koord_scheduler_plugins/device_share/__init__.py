"""DeviceShare: GPUs, RDMA interfaces and FPGAs of nodes, and shares of them."""
