{{- define "tinkex.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tinkex.selector" -}}
app.kubernetes.io/name: tinkex
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tinkex.labels" -}}
{{ include "tinkex.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "tinkex.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The name of the Secret that holds one of the secrets: yours, or the chart's own. */}}
{{- define "tinkex.secretName" -}}
{{ .entry.existingSecret | default (printf "%s-secrets" (include "tinkex.name" .root)) }}
{{- end }}

{{/* One secret as a file in the volume of secrets. */}}
{{- define "tinkex.secretSource" -}}
- secret:
    name: {{ include "tinkex.secretName" . }}
    items:
      - {key: {{ .entry.key }}, path: {{ .path }}}
{{- end }}

{{- define "tinkex.depotEnv" -}}
{{- range $name, $value := .Values.depotEnv }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "tinkex.envFrom" -}}
{{- with .Values.depotSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "tinkex.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod of a worker: .root, .component, .role and .values (trainers or samplers). */}}
{{- define "tinkex.workerPod" -}}
metadata:
  labels: {{- include "tinkex.labels" . | nindent 4 }}
  {{- with .values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- include "tinkex.placement" .values | nindent 2 }}
  containers:
    - name: worker
      image: {{ include "tinkex.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      securityContext: {{- toYaml .root.Values.securityContext | nindent 8 }}
      args:
        - worker
        - --join={{ include "tinkex.name" .root }}-workers:8001
        - --token-file=/run/secrets/tinkex/worker-token
        {{- range .root.Values.models }}
        - --model={{ .name }}={{ .path }}
        {{- end }}
        - --role={{ .role }}
        - --name=$(POD_NAME)
        - --device={{ .values.device }}
        - --dtype={{ .values.dtype }}
        {{- range .values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- include "tinkex.depotEnv" .root | nindent 8 }}
      {{- include "tinkex.envFrom" .root | nindent 6 }}
      # Ready: a connection to port 8001 (hex 1F41) is established. There is no liveness probe: the server
      # itself hangs up on a worker that does not answer, and one without a server keeps its models loaded.
      readinessProbe:
        exec:
          command: [grep, -qE, "^ *[0-9]+: [0-9A-F]+:[0-9A-F]{4} [0-9A-F]+:1F41 01 ", /proc/net/tcp, /proc/net/tcp6]
        periodSeconds: 5
      resources:
        {{- $resources := deepCopy .values.resources }}
        {{- if gt (int .values.gpus) 0 }}
        {{- $gpus := dict "limits" (dict "nvidia.com/gpu" (int .values.gpus)) }}
        {{- $resources = mergeOverwrite $resources $gpus }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        - {name: secrets, mountPath: /run/secrets/tinkex, readOnly: true}
        - {name: models, mountPath: /models, readOnly: true}
  volumes:
    {{- if not (dig "persistence" "enabled" false .values) }}
    - {name: data, emptyDir: {}}
    {{- end }}
    - {name: tmp, emptyDir: {}}
    - name: models
      {{- toYaml .root.Values.modelsVolume | nindent 6 }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- include "tinkex.secretSource" (dict "root" .root "entry" .root.Values.secrets.workerToken "path" "worker-token") | nindent 10 }}
{{- end }}

{{- define "tinkex.claim" -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
{{- end }}
