"""Deployed pipelines: immutable versions in the tracker; the newest of each is active."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.deployment.registry import ActivePipelines as ActivePipelines
    from waybill.deployment.registry import DeployReport as DeployReport
    from waybill.deployment.registry import Mappings as Mappings
    from waybill.deployment.registry import active_pipeline as active_pipeline
    from waybill.deployment.registry import active_pipelines as active_pipelines
    from waybill.deployment.registry import active_version as active_version
    from waybill.deployment.registry import deploy as deploy
    from waybill.deployment.registry import deployed_names as deployed_names
    from waybill.deployment.registry import keeps_source as keeps_source

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "registry": [
            "ActivePipelines",
            "DeployReport",
            "Mappings",
            "active_pipeline",
            "active_pipelines",
            "active_version",
            "deploy",
            "deployed_names",
            "keeps_source",
        ],
    },
)
