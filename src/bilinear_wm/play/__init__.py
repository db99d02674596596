"""A page to feel the controller: drag the goal, switch the planner, push the agent.

    bwm play --task tworoom --checkpoint pretrained/tworoom

`stages.py` is how mouse and picture meet a task, `session.py` one simulation with its controller,
`server.py` and `page.html` what a browser sees.
"""
