"""A fault for both worlds: the plan of a rebucket that is made again instead of finished. Pure."""

from __future__ import annotations

from anabranch.model.scalable import PlanKind, ReshapePlan, ScalableTopic


def with_other_buckets(topic: ScalableTopic, plan: ReshapePlan) -> ReshapePlan:
    """A plan for the same segment with one entry bucket more; any other kind of plan stays as it is."""
    if plan.kind is not PlanKind.REBUCKET:
        return plan
    [parent], [child] = plan.parents, plan.children
    before = topic.layout.segment(parent).bucket_count
    more = child.bucket_count + (2 if child.bucket_count + 1 == before else 1)
    return ReshapePlan(plan.kind, plan.parents, topic.layout.rebucket(parent, more, child.created_ms))
