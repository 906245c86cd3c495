"""Capacity that follows the work: how many nodes there are, and how many workers a node has.

Each minute the delay monitor (``waits``) sees how long tasks wait that may run, and the infra
coordinator (``coordinator``) decides from that, from the nodes' own reports and from what the
processing coordinator asks for, how many nodes there are to be (``policy``), and asks for them
(``backends``). On each node an enhancer (``enhancer``) adds workers where the node has room.

Invariants
  I1  Deciding is pure: the same observation, memory and thresholds give the same decision, live
      and in the simulator.
  I2  What is not known changes nothing: without a fresh measurement, or a backend that answers,
      nodes stay as they are; thresholds that are away or contradict leave the last ones in force.
  I3  A decision is written with its reasons before anybody acts on it. Backends are told totals.
  I4  A node is ended only after it drained: it reports that nothing runs, and no write-ahead log of
      it is open. None is ended by force.
  I5  A dry run changes nothing: no node drains for it.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.capacity.backends import AutoScalingNodes as AutoScalingNodes
    from waybill.capacity.backends import DryRunNodes as DryRunNodes
    from waybill.capacity.backends import NodeBackend as NodeBackend
    from waybill.capacity.coordinator import CapacityReport as CapacityReport
    from waybill.capacity.coordinator import scale as scale
    from waybill.capacity.enhancer import AirflowPool as AirflowPool
    from waybill.capacity.enhancer import CeleryPool as CeleryPool
    from waybill.capacity.enhancer import Enhancer as Enhancer
    from waybill.capacity.enhancer import EnhancerLimits as EnhancerLimits
    from waybill.capacity.enhancer import EnhancerState as EnhancerState
    from waybill.capacity.enhancer import MachineUsage as MachineUsage
    from waybill.capacity.enhancer import SparkWorker as SparkWorker
    from waybill.capacity.enhancer import Usage as Usage
    from waybill.capacity.enhancer import WorkerPool as WorkerPool
    from waybill.capacity.enhancer import adjust as adjust
    from waybill.capacity.followers import Follower as Follower
    from waybill.capacity.history import CapacityHistory as CapacityHistory
    from waybill.capacity.history import HistorySpan as HistorySpan
    from waybill.capacity.history import capacity_history as capacity_history
    from waybill.capacity.model import KINDS as KINDS
    from waybill.capacity.model import Decision as Decision
    from waybill.capacity.model import NodeKind as NodeKind
    from waybill.capacity.model import Observation as Observation
    from waybill.capacity.model import PolicyState as PolicyState
    from waybill.capacity.model import Thresholds as Thresholds
    from waybill.capacity.plot import png_plot as png_plot
    from waybill.capacity.plot import svg_plot as svg_plot
    from waybill.capacity.plot import terminal_plot as terminal_plot
    from waybill.capacity.policy import decide as decide
    from waybill.capacity.records import Node as Node
    from waybill.capacity.records import NodeReport as NodeReport
    from waybill.capacity.records import enhancer_of as enhancer_of
    from waybill.capacity.records import read_nodes as read_nodes
    from waybill.capacity.records import write_report as write_report
    from waybill.capacity.records import write_waits as write_waits
    from waybill.capacity.request import SimulationRequest as SimulationRequest
    from waybill.capacity.shares import Shares as Shares
    from waybill.capacity.shares import SlotTask as SlotTask
    from waybill.capacity.shares import share_slots as share_slots
    from waybill.capacity.simulation import WORKLOADS as WORKLOADS
    from waybill.capacity.simulation import FixedScaler as FixedScaler
    from waybill.capacity.simulation import PolicyScaler as PolicyScaler
    from waybill.capacity.simulation import Run as Run
    from waybill.capacity.simulation import Scaler as Scaler
    from waybill.capacity.simulation import ThresholdScaler as ThresholdScaler
    from waybill.capacity.simulation import Workload as Workload
    from waybill.capacity.simulation import nodes_for as nodes_for
    from waybill.capacity.simulation import simulate as simulate
    from waybill.capacity.status import CapacityStatus as CapacityStatus
    from waybill.capacity.status import capacity_status as capacity_status
    from waybill.capacity.thresholds import ConsulThresholds as ConsulThresholds
    from waybill.capacity.thresholds import FixedThresholds as FixedThresholds
    from waybill.capacity.thresholds import ThresholdStore as ThresholdStore
    from waybill.capacity.thresholds import VariableThresholds as VariableThresholds
    from waybill.capacity.waits import HISTORY_S as HISTORY_S
    from waybill.capacity.waits import DelayReport as DelayReport
    from waybill.capacity.waits import TaskTimes as TaskTimes
    from waybill.capacity.waits import summarise as summarise
    from waybill.capacity.watching import CapacityWatcher as CapacityWatcher

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "backends": ["AutoScalingNodes", "DryRunNodes", "NodeBackend"],
        "coordinator": ["CapacityReport", "scale"],
        "enhancer": [
            "AirflowPool",
            "CeleryPool",
            "Enhancer",
            "EnhancerLimits",
            "EnhancerState",
            "MachineUsage",
            "SparkWorker",
            "Usage",
            "WorkerPool",
            "adjust",
        ],
        "followers": ["Follower"],
        "history": ["CapacityHistory", "HistorySpan", "capacity_history"],
        "model": ["KINDS", "Decision", "NodeKind", "Observation", "PolicyState", "Thresholds"],
        "plot": ["png_plot", "svg_plot", "terminal_plot"],
        "policy": ["decide"],
        "records": [
            "Node",
            "NodeReport",
            "enhancer_of",
            "read_nodes",
            "write_report",
            "write_waits",
        ],
        "request": ["SimulationRequest"],
        "shares": ["Shares", "SlotTask", "share_slots"],
        "simulation": [
            "FixedScaler",
            "PolicyScaler",
            "Run",
            "Scaler",
            "ThresholdScaler",
            "WORKLOADS",
            "Workload",
            "nodes_for",
            "simulate",
        ],
        "status": ["CapacityStatus", "capacity_status"],
        "thresholds": [
            "ConsulThresholds",
            "FixedThresholds",
            "ThresholdStore",
            "VariableThresholds",
        ],
        "waits": ["DelayReport", "HISTORY_S", "TaskTimes", "summarise"],
        "watching": ["CapacityWatcher"],
    },
)
