"""The few OpenVINO names whose place differs between releases; everything else imports ``openvino`` itself."""

from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo
from openvino.passes import Manager, ModelPass

__all__ = ["Manager", "ModelPass", "Variable", "VariableInfo", "ops"]
