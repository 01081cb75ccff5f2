"""Pods of plugins: decoded as those of the API server are."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.lenient_decoding import DecodingFaults
from koord.util.errors import InvalidObject

Json = Mapping[str, Any]


class PodDecoder:
    """Makes pods of manifests and templates, with the fields that plugins declare to read.

    As with pods of the API server, a part that cannot be read is left out, and named in
    pod.spec.unread: such a pod fits no node.
    """

    def __init__(self, decoder: Decoder | None = None) -> None:
        """decoder: that of the cluster's pods, so that equal pods share what they have."""
        self._decoder = decoder or Decoder()

    def read(self, manifest: Json) -> ClusterPod:
        """Return the pod of a Pod object, as it is in JSON.

        Raises:
            InvalidObject: it is no pod, or too large.
        """
        if not isinstance(manifest, Mapping):
            raise InvalidObject("pod", wanted="an object", found=manifest)
        try:
            data = msgspec.json.encode(manifest)
        except (TypeError, ValueError, RecursionError) as err:
            raise InvalidObject("pod", wanted="JSON", found=str(err)) from err
        return self._decoder.object(POD, data, DecodingFaults())

    def read_template(
        self,
        template: Json,
        *,
        name: str,
        namespace: str,
        uid: str,
        node: str = "",
        priority: int | None = None,
    ) -> ClusterPod:
        """Return a pod of a PodTemplateSpec, such as that of a Reservation.

        Labels and annotations are the template's. node: where it is bound; "": nowhere, whatever
        the template says. priority: by default the template's, as no admission has looked at its
        class.

        Raises:
            InvalidObject: there is no pod in it.
        """
        if not isinstance(template, Mapping):
            raise InvalidObject(f"template of pod {name}", wanted="an object", found=template)
        meta, spec = template.get("metadata") or {}, template.get("spec") or {}
        for found in (meta, spec):
            if not isinstance(found, Mapping):
                wanted = "metadata and spec to be objects"
                raise InvalidObject(f"template of pod {name}", wanted=wanted, found=found)
        own: dict[str, Any] = {"nodeName": node or None}
        if priority is not None:
            own["priority"] = priority
        kept = {key: meta.get(key) for key in ("labels", "annotations")}
        identity = {"name": name, "namespace": namespace, "uid": uid}
        return self.read({"metadata": {**kept, **identity}, "spec": {**spec, **own}})
