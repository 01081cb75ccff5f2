"""Meanings of the families under other exporters' names, whose own help texts are empty."""

from collections.abc import Mapping

_INTERFACE = {  # what follows node_network_ or container_network_ -> unit, meaning
    "receive_bytes_total": ("bytes", "received"),
    "receive_packets_total": ("packets", "received"),
    "receive_errs_total": ("packets", "that arrived broken"),
    "receive_errors_total": ("packets", "that arrived broken"),
    "receive_drop_total": ("packets", "that arrived and were dropped"),
    "receive_packets_dropped_total": ("packets", "that arrived and were dropped"),
    "receive_fifo_total": ("packets", "lost because the device's queue was full"),
    "receive_frame_total": ("packets", "with a broken frame"),
    "receive_compressed_total": ("packets", "that arrived compressed"),
    "receive_multicast_total": ("packets", "received by multicast"),
    "receive_nohandler_total": ("packets", "that no protocol wanted"),
    "transmit_bytes_total": ("bytes", "sent"),
    "transmit_packets_total": ("packets", "sent"),
    "transmit_errs_total": ("packets", "that could not be sent because of an error"),
    "transmit_errors_total": ("packets", "that could not be sent because of an error"),
    "transmit_drop_total": ("packets", "dropped instead of sent"),
    "transmit_packets_dropped_total": ("packets", "dropped instead of sent"),
    "transmit_fifo_total": ("packets", "not sent because of an underrun"),
    "transmit_colls_total": ("collisions", "while sending"),
    "transmit_carrier_total": ("packets", "not sent because the carrier was lost"),
    "transmit_compressed_total": ("packets", "sent compressed"),
    "carrier": ("0 or 1", "whether there is a carrier"),
    "carrier_changes_total": ("changes", "of the carrier"),
    "carrier_up_changes_total": ("changes", "of the carrier to up"),
    "carrier_down_changes_total": ("changes", "of the carrier to down"),
    "flags": ("bits", "flags of the interface (IFF_*)"),
    "iface_id": ("number", "of the interface"),
    "iface_link": ("number", "of the interface below it"),
    "iface_link_mode": ("number", "link mode"),
    "info": ("1", "what the interface is"),
    "mtu_bytes": ("bytes", "largest packet"),
    "speed_bytes": ("bytes per second", "what the link can carry in each direction"),
    "net_dev_group": ("number", "of the interface's group"),
    "protocol_type": ("number", "hardware type (ARPHRD_*)"),
    "transmit_queue_length": ("packets", "that the send queue takes"),
    "up": ("0 or 1", "whether the interface is up"),
}
_OTHER = {
    "node_softnet_processed_total": ("packets", "processed by the CPU"),
    "node_softnet_dropped_total": ("packets", "dropped because the CPU's backlog was full"),
    "node_softnet_times_squeezed_total": ("times", "that the CPU left packets for later"),
    "node_nf_conntrack_entries": ("connections", "tracked"),
    "node_nf_conntrack_entries_limit": ("connections", "that can be tracked"),
}
MEANINGS: Mapping[str, tuple[str, str]] = _OTHER | {
    f"{prefix}_network_{name}": meaning
    for prefix in ("node", "container")
    for name, meaning in _INTERFACE.items()
}
